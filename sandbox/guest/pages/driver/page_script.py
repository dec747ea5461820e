"""The script that reads a page: its outline, its text and its links, and finds the elements to act on.

It runs in a world of its own beside the page's scripts, which can neither see it nor change what it calls. All that it returns is
bounded. References (e1, e2, ...) stay with their elements as long as the page is not replaced.
"""

from __future__ import annotations

# What the script returns at most. Pages are longer than any model reads; the host cuts again.
OUTLINE_LINES, OUTLINE_CHARS = 4000, 400_000
TEXT_CHARS = 2 << 20
LINKS = 200

SCRIPT = r"""
(() => {
if (globalThis.gamebox) return;
const refs = new Map(), numbers = new WeakMap();
let last = 0;
const NODES = 60000, NAME = 200;
const ROLES = {A: 'link', BUTTON: 'button', SELECT: 'combobox', TEXTAREA: 'textbox', OPTION: 'option', IMG: 'img', NAV: 'navigation',
  MAIN: 'main', HEADER: 'banner', FOOTER: 'contentinfo', ASIDE: 'complementary', FORM: 'form', TABLE: 'table', TR: 'row',
  TH: 'columnheader', TD: 'cell', UL: 'list', OL: 'list', LI: 'listitem', DIALOG: 'dialog', SUMMARY: 'button',
  FIELDSET: 'group', DETAILS: 'group', PROGRESS: 'progressbar', METER: 'meter', OUTPUT: 'status', IFRAME: 'iframe', FRAME: 'iframe',
  HR: 'separator', VIDEO: 'video', AUDIO: 'audio', CANVAS: 'canvas', DATALIST: 'listbox', OPTGROUP: 'group', LEGEND: 'legend'};
const INPUTS = {button: 'button', submit: 'button', reset: 'button', image: 'button', checkbox: 'checkbox', radio: 'radio',
  range: 'slider', number: 'spinbutton', search: 'searchbox', file: 'file', color: 'color', date: 'date', time: 'time',
  'datetime-local': 'datetime', month: 'month', week: 'week', hidden: ''};
const ACTIVE = new Set(['link', 'button', 'combobox', 'textbox', 'option', 'checkbox', 'radio', 'slider', 'spinbutton', 'searchbox',
  'file', 'color', 'date', 'time', 'datetime', 'month', 'week', 'tab', 'menuitem', 'menuitemcheckbox', 'menuitemradio', 'switch',
  'treeitem', 'gridcell', 'listbox', 'canvas', 'video', 'audio']);
const NAMED_BY_TEXT = new Set(['link', 'button', 'option', 'tab', 'menuitem', 'menuitemcheckbox', 'menuitemradio', 'switch', 'treeitem',
  'heading', 'cell', 'columnheader', 'gridcell', 'rowheader', 'legend', 'tooltip', 'checkbox', 'radio', 'status', 'alert']);
const SKIPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'LINK', 'META', 'TITLE', 'OBJECT', 'EMBED', 'BASE']);
const BLOCKS = new Set(['P', 'DIV', 'SECTION', 'ARTICLE', 'MAIN', 'HEADER', 'FOOTER', 'NAV', 'ASIDE', 'FORM', 'UL', 'OL', 'LI', 'TABLE',
  'TR', 'H1', 'H2', 'H3', 'H4', 'H5', 'H6', 'PRE', 'BLOCKQUOTE', 'FIELDSET', 'DL', 'DT', 'DD', 'FIGURE', 'HR', 'DIALOG', 'DETAILS',
  'SUMMARY', 'ADDRESS', 'BODY', 'CAPTION', 'OPTION', 'LABEL', 'LEGEND']);
const line = (text, most) => { const t = String(text).slice(0, most * 4).replace(/\s+/g, ' ').trim();
  return t.length > most ? t.slice(0, most - 3) + '...' : t; };
const isElement = n => n.nodeType === 1;
function shown(e, style) {
  if (style.display === 'none' || style.visibility === 'hidden' || style.visibility === 'collapse') return false;
  return e.getAttribute('aria-hidden') !== 'true';
}
function styleOf(e) { return (e.ownerDocument.defaultView || window).getComputedStyle(e); }
function frameDocument(e) { try { return e.contentDocument; } catch { return null; } }
function childrenOf(e) {
  if (e.shadowRoot) return e.shadowRoot.childNodes;
  if (e.tagName === 'SLOT' && e.assignedNodes().length) return e.assignedNodes();
  return e.childNodes;
}
function refOf(e) {
  let number = numbers.get(e);
  if (!number) { number = ++last; numbers.set(e, number); refs.set(number, new WeakRef(e)); }
  return 'e' + number;
}
function roleOf(e) {
  const given = (e.getAttribute('role') || '').trim().split(/\s+/)[0].toLowerCase();
  if (given && /^[a-z]{1,30}$/.test(given)) return given === 'presentation' || given === 'none' || given === 'generic' ? '' : given;
  const tag = e.tagName;
  if (tag === 'INPUT') { const kind = INPUTS[e.type]; return kind === undefined ? 'textbox' : kind; }
  if (tag === 'A') return e.hasAttribute('href') ? 'link' : '';
  if (tag === 'SELECT') return e.multiple || e.size > 1 ? 'listbox' : 'combobox';
  if (/^H[1-6]$/.test(tag)) return 'heading';
  if (e.isContentEditable && !(e.parentElement && e.parentElement.isContentEditable)) return 'textbox';
  return ROLES[tag] || '';
}
function textIn(e, most) {
  let found = '', seen = 0;
  const visit = n => {
    if (found.length > most || ++seen > 2000) return;
    if (n.nodeType === 3) { found += n.data.slice(0, most); return; }
    if (!isElement(n) || SKIPPED.has(n.tagName) || n.getAttribute('aria-hidden') === 'true') return;
    if (n !== e && n.hidden) return;
    if (n.tagName === 'IMG') { found += ' ' + (n.alt || '') + ' '; return; }
    if (n.tagName === 'INPUT' || n.tagName === 'SELECT' || n.tagName === 'TEXTAREA') return;
    if (n.tagName === 'svg') { const t = n.querySelector('title'); if (t) found += ' ' + t.textContent + ' '; return; }
    const block = BLOCKS.has(n.tagName);
    if (block) found += ' ';
    for (const c of childrenOf(n)) visit(c);
    if (block) found += ' ';
  };
  visit(e);
  return line(found, most);
}
function nameOf(e, role) {
  const by = e.getAttribute('aria-labelledby');
  if (by) {
    const root = e.getRootNode();
    const text = by.trim().split(/\s+/).slice(0, 8).map(id => root.getElementById && root.getElementById(id)).filter(Boolean)
      .map(o => textIn(o, NAME)).join(' ');
    if (text) return line(text, NAME);
  }
  const label = e.getAttribute('aria-label');
  if (label && label.trim()) return line(label, NAME);
  if (e.labels && e.labels.length) {
    const text = Array.from(e.labels).slice(0, 4).map(l => textIn(l, NAME)).join(' ');
    if (text.trim()) return line(text, NAME);
  }
  if (e.tagName === 'INPUT' && INPUTS[e.type] === 'button')
    return line(e.value || e.alt || {submit: 'Submit', reset: 'Reset'}[e.type] || '', NAME);
  if (e.tagName === 'IMG' || e.tagName === 'AREA') return line(e.alt || e.title || '', NAME);
  if (e.tagName === 'FIELDSET') { const l = e.querySelector('legend'); if (l) return textIn(l, NAME); }
  if (e.tagName === 'TABLE' && e.caption) return textIn(e.caption, NAME);
  if (e.tagName === 'OPTGROUP') return line(e.label, NAME);
  if (NAMED_BY_TEXT.has(role)) { const text = textIn(e, NAME); if (text) return text; }
  return line(e.title || e.getAttribute('placeholder') || (role === 'iframe' ? e.name : '') || '', NAME);
}
function statesOf(e, role) {
  const found = [];
  if (role === 'heading') found.push('level=' + (e.getAttribute('aria-level') || e.tagName[1] || 2));
  if (e.tagName === 'INPUT' && (e.type === 'checkbox' || e.type === 'radio')) { if (e.checked) found.push('checked'); }
  else if (e.getAttribute('aria-checked') === 'true') found.push('checked');
  if (e.getAttribute('aria-selected') === 'true' || (e.tagName === 'OPTION' && e.selected)) found.push('selected');
  if (e.getAttribute('aria-pressed') === 'true') found.push('pressed');
  if (e.matches(':disabled') || e.getAttribute('aria-disabled') === 'true') found.push('disabled');
  if (e.readOnly) found.push('readonly');
  if (e.required) found.push('required');
  const expanded = e.getAttribute('aria-expanded');
  if (expanded === 'true' || (e.tagName === 'SUMMARY' && e.parentElement && e.parentElement.open)) found.push('expanded');
  else if (expanded === 'false' || (e.tagName === 'SUMMARY')) found.push('collapsed');
  if (e.willValidate && !e.disabled && e.matches(':user-invalid')) found.push('invalid');
  if (e.getAttribute('aria-current') && e.getAttribute('aria-current') !== 'false') found.push('current');
  if (e.ownerDocument.activeElement === e && e !== e.ownerDocument.body && e.tagName !== 'IFRAME') found.push('focused');
  return found;
}
function valueOf(e, role) {
  if (e.tagName === 'INPUT') {
    if (['checkbox', 'radio', 'button', 'submit', 'reset', 'image'].includes(e.type)) return null;
    if (e.type === 'password') return '*'.repeat(Math.min(e.value.length, 20));
    return line(e.value, NAME);
  }
  if (e.tagName === 'TEXTAREA') return line(e.value, NAME);
  if (e.tagName === 'SELECT') return line(Array.from(e.selectedOptions).slice(0, 20).map(o => o.label).join(', '), NAME);
  if (e.tagName === 'PROGRESS' || e.tagName === 'METER') return String(e.value);
  if (role === 'textbox') return textIn(e, NAME);
  return e.getAttribute('aria-valuetext') || e.getAttribute('aria-valuenow');
}
function outline(mostLines, mostChars) {
  const lines = [];
  let chars = 0, cut = false, seen = 0, buffered = '';
  const put = (depth, text) => {
    if (lines.length >= mostLines || chars > mostChars) { cut = true; return; }
    const made = '  '.repeat(Math.min(depth, 20)) + '- ' + text;
    lines.push(made); chars += made.length + 1;
  };
  const flush = depth => { const t = line(buffered, 400); buffered = ''; if (t) put(depth, 'text: ' + t); };
  const visit = (n, depth, pointer) => {
    if (cut) return;
    if (++seen > NODES) { cut = true; return; }
    if (n.nodeType === 3) { if (buffered.length < 2000) buffered += n.data.slice(0, 2000); return; }
    if (!isElement(n) || SKIPPED.has(n.tagName)) return;
    const tag = n.tagName;
    if (tag === 'BR') { buffered += ' '; return; }
    const style = styleOf(n);
    if (tag !== 'OPTION' && tag !== 'OPTGROUP' && !shown(n, style)) return;
    const block = style.display !== 'inline' && style.display !== 'contents';
    if (block) flush(depth);
    const role = tag === 'svg' ? (n.getAttribute('role') || n.querySelector('title') || n.getAttribute('aria-label') ? 'img' : '') : roleOf(n);
    const clicks = !role && tag !== 'LABEL' && tag !== 'BODY' && tag !== 'HTML' &&
      (n.hasAttribute('onclick') || (n.hasAttribute('tabindex') && n.tabIndex >= 0) || n.draggable === true && tag !== 'IMG' && tag !== 'A' ||
       (style.cursor === 'pointer' && !pointer));
    if (!role && !clicks) {
      if (tag === 'svg') return;
      if (tag === 'LABEL' && n.control && n.control.getClientRects().length) {  // the name of its field
        for (const c of childrenOf(n)) if (isElement(c)) visit(c, depth, true);
        buffered = '';
        return;
      }
      for (const c of childrenOf(n)) visit(c, depth, pointer || style.cursor === 'pointer');
      if (block) flush(depth);
      return;
    }
    flush(depth);
    const kind = role || 'clickable';
    let name = clicks ? textIn(n, NAME) : tag === 'svg' ? line(n.getAttribute('aria-label') || (n.querySelector('title') || {}).textContent || '', NAME) : nameOf(n, role);
    const states = statesOf(n, role);
    if (ACTIVE.has(kind) || clicks || n.hasAttribute('onclick') || kind === 'iframe') states.push('ref=' + refOf(n));
    const value = valueOf(n, role);
    if (value) states.push('value=' + JSON.stringify(value));
    if (n.placeholder && n.placeholder !== name) states.push('placeholder=' + JSON.stringify(line(n.placeholder, 80)));
    if (role === 'link') states.push('url=' + line(n.getAttribute('href') || '', 200));
    const whole = clicks || (NAMED_BY_TEXT.has(role) && name.length < NAME - 3);
    const quoted = name ? ' ' + JSON.stringify(name) : '';
    if ((role === 'cell' || role === 'listitem' || role === 'row' || role === 'list' || role === 'group' || role === 'form' || role === 'table'
         || role === 'status') && whole && !name && !n.childElementCount) return;
    put(depth, kind + quoted + (states.length ? ' [' + states.join('] [') + ']' : ''));
    if (role === 'iframe') {
      const inner = frameDocument(n);
      if (inner && inner.body) { visit(inner.body, depth + 1, false); flush(depth + 1); }
      return;
    }
    if (tag === 'TEXTAREA' || (role === 'textbox' && tag !== 'INPUT') || tag === 'svg') return;
    if (role === 'combobox' && tag === 'SELECT' && n.options.length > 30) {
      put(depth + 1, 'text: ' + n.options.length + ' options, the first: ' + line(Array.from(n.options).slice(0, 10).map(o => o.label).join(', '), 300));
      return;
    }
    const inside = [];
    if (whole) {  // its text is its name: below it only what is more than text
      const find = c => { for (const x of childrenOf(c)) if (isElement(x) && !SKIPPED.has(x.tagName)) {
        const r = roleOf(x);
        if (++seen > NODES) return;
        if (r && r !== 'img' && (ACTIVE.has(r) || r === 'list' || r === 'table' || r === 'heading') || x.hasAttribute('onclick')) inside.push(x); else find(x); } };
      find(n);
      for (const x of inside) visit(x, depth + 1, true);
      buffered = '';
      return;
    }
    for (const c of childrenOf(n)) visit(c, depth + 1, pointer || style.cursor === 'pointer');
    flush(depth + 1);
  };
  if (document.body) visit(document.body, 0, false);
  flush(0);
  return {lines, cut, count: seen};
}
function text(most) {
  const parts = [];
  let size = 0, seen = 0;
  const put = t => { parts.push(t); size += t.length; };
  const visit = (n, pre) => {
    if (size > most || ++seen > NODES * 4) return;
    if (n.nodeType === 3) { put(pre ? n.data : n.data.replace(/\s+/g, ' ')); return; }
    if (!isElement(n) || SKIPPED.has(n.tagName) || n.tagName === 'svg' || n.tagName === 'SELECT') return;
    const tag = n.tagName;
    if (tag === 'BR') { put('\n'); return; }
    if (!shown(n, styleOf(n))) return;
    if (tag === 'IFRAME' || tag === 'FRAME') { const d = frameDocument(n); if (d && d.body) { put('\n\n'); visit(d.body, false); put('\n\n'); } return; }
    if (tag === 'TEXTAREA') return;
    const level = /^H([1-6])$/.exec(tag);
    if (level) put('\n\n' + '#'.repeat(+level[1]) + ' ');
    else if (tag === 'LI') put('\n* ');
    else if (tag === 'PRE') put('\n\n```\n');
    else if (tag === 'TR') put('\n|');
    else if (tag === 'TD' || tag === 'TH') put(' ');
    else if (tag === 'P' || tag === 'UL' || tag === 'OL' || tag === 'TABLE' || tag === 'BLOCKQUOTE' || tag === 'HR') put('\n\n');
    else if (BLOCKS.has(tag)) put('\n');
    const mark = !pre && (tag === 'STRONG' || tag === 'B') ? '**' : !pre && tag === 'CODE' ? '`' : '';
    const href = tag === 'A' && n.getAttribute('href');
    if (href) put('['); else if (mark) put(mark);
    for (const c of childrenOf(n)) visit(c, pre || tag === 'PRE');
    if (href) put('](' + line(href, 500) + ')'); else if (mark) put(mark);
    if (level || tag === 'P' || tag === 'UL' || tag === 'OL' || tag === 'TABLE') put('\n\n');
    else if (tag === 'PRE') put('\n```\n\n');
    else if (tag === 'TD' || tag === 'TH') put(' |');
    else if (tag === 'TR') {
      const cells = Array.from(n.children).slice(0, 100);
      if (cells.length && cells.every(c => c.tagName === 'TH')) put('\n|' + ' --- |'.repeat(cells.length));
    }
    else if (BLOCKS.has(tag)) put('\n');
  };
  if (document.body) visit(document.body, false);
  return parts.join('').replace(/[ \t]+\n/g, '\n').replace(/\n[ \t]+(?=\S)/g, '\n').replace(/\n{3,}/g, '\n\n').trim().slice(0, most);
}
function links(most) {
  const found = new Map();
  for (const a of document.querySelectorAll('a[href]')) {
    if (found.size >= most) break;
    if (/^https?:/.test(a.href) && a.href.length <= 2048 && !found.get(a.href)) found.set(a.href, textIn(a, NAME));
  }
  return Array.from(found, ([url, text]) => ({text, url}));
}
function visible(e) { const r = e.getClientRects(); return r.length > 0 && styleOf(e).visibility !== 'hidden'; }
function* documents(d, depth) {
  yield d;
  if (depth < 5) for (const f of d.querySelectorAll('iframe, frame')) { const inner = frameDocument(f); if (inner) yield* documents(inner, depth + 1); }
}
function find(target) {
  const ref = /^\[?(?:ref=)?e(\d{1,9})\]?$/.exec(target);
  if (ref) {
    const held = refs.get(+ref[1]), e = held && held.deref();
    return e && e.isConnected ? e : null;
  }
  let first = null;
  for (const d of documents(document, 0)) {
    for (const e of Array.from(d.querySelectorAll(target)).slice(0, 200)) { if (visible(e)) return e; first = first || e; }
  }
  return first;
}
function describe(e) { const role = roleOf(e) || e.tagName.toLowerCase(), name = nameOf(e, role) || textIn(e, 60);
  return line(role + (name ? ' ' + JSON.stringify(line(name, 60)) : '') + ' [ref=' + refOf(e) + ']', 200); }
function point(e) {
  if (!e.isConnected) return {problem: 'gone'};
  if (e.matches(':disabled')) return {problem: 'disabled'};
  const what = describe(e);
  if (e.tagName === 'OPTION' && !e.getClientRects().length) e = e.closest('select') || e;  // a closed list shows none
  e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});
  let r = Array.from(e.getClientRects()).find(r => r.width > 0 && r.height > 0);
  if (!r || styleOf(e).visibility === 'hidden') return {problem: 'hidden'};
  const w = e.ownerDocument.defaultView;
  let x = Math.max(0, r.left) + (Math.min(r.right, w.innerWidth) - Math.max(0, r.left)) / 2;
  let y = Math.max(0, r.top) + (Math.min(r.bottom, w.innerHeight) - Math.max(0, r.top)) / 2;
  let hit = e.getRootNode().elementFromPoint(x, y);
  const within = h => { for (let n = h; n; n = n.parentNode || n.host) if (n === e) return true;
    for (let n = e; n; n = n.parentNode || n.host) if (n === h) return true;
    return !!(h && e.labels && Array.from(e.labels).some(l => l.contains(h))); };
  if (!hit) return {problem: 'outside'};
  if (!within(hit)) return {problem: 'covered', by: describe(hit)};
  for (let f = w.frameElement; f; f = f.ownerDocument.defaultView.frameElement) {
    const b = f.getBoundingClientRect();
    x += b.left + f.clientLeft; y += b.top + f.clientTop;
  }
  return {x, y, what};
}
function fillable(e) {
  if (e.matches(':disabled')) return 'disabled';
  if (e.readOnly) return 'readonly';
  if (e.tagName === 'INPUT') return ['checkbox', 'radio', 'button', 'submit', 'reset', 'image', 'file', 'hidden'].includes(e.type) ? 'not a field for text' : '';
  return e.tagName === 'TEXTAREA' || e.isContentEditable ? '' : 'not a field for text';
}
function fill(e, value) {
  const problem = fillable(e);
  if (problem) return {problem};
  e.focus();
  if (e.isContentEditable && e.tagName !== 'INPUT' && e.tagName !== 'TEXTAREA') {
    const s = e.ownerDocument.getSelection(); s.selectAllChildren(e);
    return {insert: true, what: describe(e)};
  }
  const typed = ['color', 'date', 'time', 'datetime-local', 'month', 'week', 'range', 'number'].includes(e.type);
  if (!typed) { e.select(); return {insert: true, what: describe(e)}; }
  const proto = Object.getPrototypeOf(e);
  Object.getOwnPropertyDescriptor(proto, 'value').set.call(e, value);
  if (e.value !== value && (value || e.type === 'color') && !(e.type === 'range' || e.type === 'number' && +e.value === +value))
    return {problem: 'value', format: {date: '2026-12-31', time: '23:59', 'datetime-local': '2026-12-31T23:59', month: '2026-12', week: '2026-W52', color: '#ff0000', number: '12'}[e.type] || ''};
  e.dispatchEvent(new Event('input', {bubbles: true, composed: true})); e.dispatchEvent(new Event('change', {bubbles: true}));
  return {what: describe(e)};
}
function select(e, wanted) {
  if (e.tagName === 'OPTION') { wanted = [e.label]; e = e.closest('select'); }
  if (!e || e.tagName !== 'SELECT') return {problem: 'not a select'};
  if (e.matches(':disabled')) return {problem: 'disabled'};
  const options = Array.from(e.options), chosen = [];
  for (const w of wanted) {
    const o = options.find(o => o.label.trim() === w || o.value === w) || options.find(o => o.label.trim().toLowerCase() === w.trim().toLowerCase());
    if (!o) return {problem: 'no option', options: line(options.slice(0, 40).map(o => o.label).join(', '), 400)};
    if (o.disabled) return {problem: 'disabled'};
    chosen.push(o);
  }
  if (!e.multiple && chosen.length !== 1) return {problem: 'one option'};
  for (const o of options) o.selected = chosen.includes(o);
  e.dispatchEvent(new Event('input', {bubbles: true, composed: true})); e.dispatchEvent(new Event('change', {bubbles: true}));
  return {what: describe(e)};
}
function box(e) {
  e.scrollIntoView({block: 'center', behavior: 'instant'});
  const r = e.getBoundingClientRect();
  let x = r.left, y = r.top;
  for (let f = e.ownerDocument.defaultView.frameElement; f; f = f.ownerDocument.defaultView.frameElement) {
    const b = f.getBoundingClientRect(); x += b.left + f.clientLeft; y += b.top + f.clientTop;
  }
  return {x: x + scrollX, y: y + scrollY, width: r.width, height: r.height};
}
function full() { const d = document.documentElement; return {width: Math.max(d.scrollWidth, innerWidth), height: Math.max(d.scrollHeight, innerHeight)}; }
function has(wanted) { return !!document.body && (line(document.body.innerText, 1e6).includes(line(wanted, 1e4)) || text(1e6).includes(wanted)); }
function scroll(e, way) {
  const t = e || document.scrollingElement || document.documentElement, page = (e ? e.clientHeight : innerHeight) * 0.8;
  if (e && way === '') { e.scrollIntoView({block: 'center', behavior: 'instant'}); return {what: describe(e)}; }
  const top = {up: t.scrollTop - page, down: t.scrollTop + page, top: 0, bottom: t.scrollHeight}[way];
  if (top !== undefined) t.scrollTo({top, behavior: 'instant'});
  const left = {left: t.scrollLeft - page, right: t.scrollLeft + page}[way];
  if (left !== undefined) t.scrollTo({left, behavior: 'instant'});
  return {x: Math.round(t.scrollLeft), y: Math.round(t.scrollTop)};
}
globalThis.gamebox = {outline, text, links, find, point, fill, fillable, select, box, full, has, scroll, describe,
  settle: () => new Promise(done => { const t = setTimeout(done, 60); requestAnimationFrame(() => requestAnimationFrame(() => { clearTimeout(t); done(); })); })};
})()
"""
