"""Forty small pages, each with a task, in the style of MiniWoB: a page's title becomes SOLVED when its task is done, and not before.

A goal says in terms of roles and names what a person would do; nothing in it knows the page's HTML. Each kind of page comes in
variants, made of the same definition.
"""

from __future__ import annotations

from dataclasses import dataclass

Move = tuple[str, ...]
DONE = "function done(ok){document.title = ok ? 'SOLVED' : 'WRONG'}"


@dataclass(frozen=True)
class Task:
    name: str
    body: str
    script: str
    goal: tuple[Move, ...]

    @property
    def page(self) -> str:
        """The page as HTML."""
        style = "<style>.menu{display:none}.open .menu{display:block}[hidden]{display:none}li{cursor:default}</style>"
        return (
            f"<!doctype html><title>{self.name}</title>{style}<body>{self.body}<script>{DONE}\n{self.script}</script>"
        )


def _button(name: str, number: int) -> Task:
    others = "".join(
        f"<button onclick=done(0)>{other}</button>" for other in ("Yes", "No", "Cancel", "Later") if other != name
    )
    return Task(
        f"button-{number}", f"{others}<button onclick=done(1)>{name}</button>", "", (("click", "button", name),)
    )


def _link(name: str, number: int) -> Task:
    words = "".join(
        f"<a href=# onclick='done({int(each == name)})'>{each}</a>, " for each in ("lorem", "ipsum", "dolor", "sit")
    )
    return Task(f"link-{number}", f"<p>{words}</p>", "", (("click", "link", name),))


def _login(user: str, password: str, number: int) -> Task:
    body = """<form onsubmit="event.preventDefault();done(u.value==='%s'&&p.value==='%s')"><label>User <input id=u></label>
      <label>Password <input id=p type=password></label><button>Log in</button></form>""" % (user, password)
    goal = (("fill", "textbox", "User", user), ("fill", "textbox", "Password", password), ("click", "button", "Log in"))
    return Task(f"login-{number}", body, "", goal)


def _checkboxes(wanted: tuple[str, ...], number: int) -> Task:
    names = ("red", "green", "blue", "white", "black")
    body = "".join(f"<label><input type=checkbox value={each}> {each}</label>" for each in names)
    script = (
        "function send(){done([...document.querySelectorAll(':checked')].map(c=>c.value).join()==='%s')}"
        % ",".join(wanted)
    )
    goal = (*(("click", "checkbox", each) for each in wanted), ("click", "button", "Submit"))
    return Task(f"checkboxes-{number}", f"{body}<button onclick=send()>Submit</button>", script, goal)


def _radio(wanted: str, number: int) -> Task:
    body = "".join(
        f"<label><input type=radio name=r value={each}>{each}</label>" for each in ("small", "medium", "large")
    )
    ask = f"<button onclick=\"done(document.querySelector(':checked')?.value==='{wanted}')\">OK</button>"
    return Task(f"radio-{number}", body + ask, "", (("click", "radio", wanted), ("click", "button", "OK")))


def _select(wanted: str, number: int) -> Task:
    options = "".join(f"<option>{each}</option>" for each in ("Andorra", "Belgium", "Chile", "Denmark", "Estonia"))
    body = f"<label>Country <select id=s>{options}</select></label><button onclick=\"done(s.value==='{wanted}')\">Go</button>"
    return Task(f"select-{number}", body, "", (("select", "combobox", "Country", wanted), ("click", "button", "Go")))


def _date(value: str, number: int) -> Task:
    body = f"<label>Day <input type=date id=d></label><button onclick=\"done(d.value==='{value}')\">Book</button>"
    return Task(f"date-{number}", body, "", (("fill", "date", "Day", value), ("click", "button", "Book")))


def _calendar(month: str, day: str, number: int) -> Task:
    body = "<button id=b onclick=step(-1)>Previous month</button><h2 id=h></h2><button onclick=step(1)>Next month</button><div id=g></div>"
    script = """const names=['January','February','March','April','May','June','July','August','September','October','November','December'];
      let m=0; function step(n){m=(m+n+12)%%12;draw()}
      function draw(){h.textContent=names[m];g.innerHTML='';for(let i=1;i<=28;i++){const b=document.createElement('span');
      b.textContent=i;b.style.cursor='pointer';b.onclick=()=>done(names[m]==='%s'&&i===%s);g.append(b,' ')}} draw()""" % (
        month,
        day,
    )
    goal = (("until", "heading", month, "button", "Next month"), ("click", "clickable", day))
    return Task(f"calendar-{number}", body, script, goal)


def _menu(path: tuple[str, str], number: int) -> Task:
    parts = []
    for title in ("File", "Edit", "View"):
        items = "".join(
            f'<div role=menuitem tabindex=-1 onclick="done({int((title, each) == path)})">{each}</div>'
            for each in ("New", "Copy", "Zoom")
        )
        parts.append(
            f"<div><button aria-haspopup=menu onclick=\"this.parentNode.classList.toggle('open')\">{title}</button>"
            f"<div class=menu role=menu>{items}</div></div>"
        )
    return Task(f"menu-{number}", "".join(parts), "", (("click", "button", path[0]), ("click", "menuitem", path[1])))


def _hover(item: str, number: int) -> Task:
    items = "".join(
        f"<li><button onclick=done({int(each == item)})>{each}</button></li>" for each in ("Cut", "Paste", "Undo")
    )
    body = f'<div id=m tabindex=0 aria-label=Actions role=button onmouseenter="l.hidden=false">Actions</div><ul id=l hidden>{items}</ul>'
    return Task(f"hover-{number}", body, "", (("hover", "button", "Actions"), ("click", "button", item)))


def _confirm(answer: str, number: int) -> Task:
    wanted = "true" if answer == "accept" else "false"
    body = f"<button onclick=\"done(confirm('Delete all?')==={wanted})\">Delete</button>"
    return Task(f"confirm-{number}", body, "", (("click", "button", "Delete"), ("dialog", answer)))


def _prompt(answer: str, number: int) -> Task:
    body = f"<button onclick=\"done(prompt('Your city?')==='{answer}')\">Ask me</button>"
    return Task(f"prompt-{number}", body, "", (("click", "button", "Ask me"), ("dialog", answer)))


def _modal(name: str, number: int) -> Task:
    body = f"""<button onclick="d.showModal()">Settings</button><dialog id=d aria-label=Settings><label>Nickname <input id=n></label>
      <button onclick="d.close();done(n.value==='{name}')">Save</button></dialog>"""
    goal = (("click", "button", "Settings"), ("fill", "textbox", "Nickname", name), ("click", "button", "Save"))
    return Task(f"modal-{number}", body, "", goal)


def _tabs(tab: str, number: int) -> Task:
    heads = "".join(
        f"<button role=tab aria-selected=false onclick=\"show('{each}')\">{each}</button>"
        for each in ("One", "Two", "Three")
    )
    panels = "".join(
        f"<div role=tabpanel id={each} hidden><button onclick=done({int(each == tab)})>Finish {each}</button></div>"
        for each in ("One", "Two", "Three")
    )
    script = "function show(n){for(const p of document.querySelectorAll('[role=tabpanel]'))p.hidden=p.id!==n}"
    return Task(f"tabs-{number}", heads + panels, script, (("click", "tab", tab), ("click", "button", f"Finish {tab}")))


def _pages(wanted: str, number: int) -> Task:
    script = (
        """let p=0;function draw(){l.innerHTML='';for(let i=0;i<5;i++){const a=document.createElement('a');a.href='#';
      const n='Item '+(p*5+i);a.textContent=n;a.onclick=()=>done(n==='%s');const li=document.createElement('li');li.append(a);l.append(li)}}draw()"""
        % wanted
    )
    body = "<ul id=l></ul><button onclick='p++;draw()'>Next</button>"
    return Task(
        f"pages-{number}", body, script, (("until", "link", wanted, "button", "Next"), ("click", "link", wanted))
    )


def _table(name: str, number: int) -> Task:
    rows = "".join(
        f"<tr><td>{each}</td><td>{price}</td><td><button onclick=done({int(each == name)})>Buy {each}</button></td></tr>"
        for each, price in (("Apple", 3), ("Pear", 2), ("Plum", 1))
    )
    return Task(
        f"table-{number}", f"<table><caption>Fruit</caption>{rows}</table>", "", (("click", "button", f"Buy {name}"),)
    )


def _search(word: str, number: int) -> Task:
    body = """<form onsubmit="event.preventDefault();setTimeout(show,150)">
      <input type=search id=q aria-label=Search></form><div id=r></div>"""
    script = (
        "function show(){const a=document.createElement('a');a.href='#';a.textContent='Result for '+q.value;"
        f"a.onclick=()=>done(q.value==='{word}');r.append(a)}}"
    )
    goal = (
        ("fill", "searchbox", "Search", word),
        ("press", "Enter"),
        ("wait", f"Result for {word}"),
        ("click", "link", f"Result for {word}"),
    )
    return Task(f"search-{number}", body, script, goal)


def _keys(count: int, number: int) -> Task:
    body = (
        "<div id=s role=slider tabindex=0 aria-label=Volume aria-valuenow=0>0</div><button onclick='done(v===%d)'>Set</button>"
        % count
    )
    script = "let v=0;s.onkeydown=e=>{if(e.key==='ArrowRight')v++;s.setAttribute('aria-valuenow',v);s.textContent=v}"
    goal = (*(("press", "ArrowRight", "slider", "Volume"),) * count, ("click", "button", "Set"))
    return Task(f"keys-{number}", body, script, goal)


def _scroll(name: str, number: int) -> Task:
    body = f'<h1>Long</h1><div style=height:4000px></div><button onclick="done(scrollY>1000)">{name}</button>'
    return Task(f"scroll-{number}", body, "", (("click", "button", name),))


def _frame(word: str, number: int) -> Task:
    inner = (
        f"<label>Inner <input id=i></label><button onclick=&quot;parent.done(i.value==='{word}')&quot;>Inside</button>"
    )
    goal = (("fill", "textbox", "Inner", word), ("click", "button", "Inside"))
    return Task(f"frame-{number}", f'<iframe title=Frame srcdoc="{inner}"></iframe>', "", goal)


TASKS = (
    _button("Later", 1), _button("Cancel", 2), _link("dolor", 1), _link("sit", 2),
    _login("ann", "pa55 word", 1), _login("bob@example.com", "ünïcode", 2),
    _checkboxes(("green", "black"), 1), _checkboxes(("red", "blue", "white"), 2), _radio("medium", 1), _radio("large", 2),
    _select("Chile", 1), _select("Estonia", 2), _date("2026-02-28", 1), _date("1999-12-31", 2),
    _calendar("April", "17", 1), _calendar("September", "3", 2), _menu(("Edit", "Copy"), 1), _menu(("View", "Zoom"), 2),
    _hover("Paste", 1), _hover("Undo", 2), _confirm("accept", 1), _confirm("dismiss", 2), _prompt("Oslo", 1), _prompt("São Paulo", 2),
    _modal("fox", 1), _modal("old bear", 2), _tabs("Two", 1), _tabs("Three", 2), _pages("Item 13", 1), _pages("Item 21", 2),
    _table("Pear", 1), _table("Plum", 2), _search("otter", 1), _search("sea lion", 2), _keys(3, 1), _keys(5, 2),
    _scroll("Bottom", 1), _scroll("Imprint", 2), _frame("deep", 1), _frame("deeper still", 2),
)  # fmt: skip
