// What programs do with the JavaScript SDK of E2B: commands, files, terminals, watching, ports. SCHEME is that of the service.
import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import { CommandExitError, FileNotFoundError, FileType, Sandbox, TimeoutError } from "e2b"

const SERVER = "python3 -m http.server 8000 --bind 127.0.0.1"
const url = (sandbox, port) => `${process.env.SCHEME}://${sandbox.getHost(port)}/`
let sandbox

async function eventually(check, seconds = 30) {
  const until = Date.now() + seconds * 1000
  for (;;) {
    const found = await check()
    if (found || Date.now() > until) return found
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
}

before(async () => {
  sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { suite: "node" }, envs: { COLOUR: "red" } })
})

after(async () => {
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.isRunning(), false)
})

test("commands", async () => {
  const done = await sandbox.commands.run("echo $COLOUR; whoami; pwd; echo oh >&2")
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["red\nuser\n/home/user\n", "oh\n", 0])
  await assert.rejects(sandbox.commands.run("exit 3"), (error) => error instanceof CommandExitError && error.exitCode === 3)
  assert.equal((await sandbox.commands.run("whoami", { user: "root" })).stdout, "root\n")
  assert.equal((await sandbox.commands.run("echo $A; pwd", { envs: { A: "b" }, cwd: "/tmp" })).stdout, "b\n/tmp\n")
})

test("a command that takes too long", async () => {
  await assert.rejects(sandbox.commands.run("sleep 60", { timeoutMs: 1000 }), TimeoutError)
  assert.ok(await eventually(async () => (await sandbox.commands.run("pgrep -x sleep || true")).stdout === ""))
})

test("output comes while the command runs", async () => {
  const pieces = []
  let goOn
  const first = new Promise((resolve) => (goOn = resolve))
  const running = await sandbox.commands.run("echo one; until test -e go-on; do sleep 0.1; done; echo two; echo bad >&2", {
    background: true,
    onStdout: (text) => (pieces.push(text), goOn()),
    onStderr: (text) => void pieces.push(text),
  })
  await first
  assert.deepEqual(pieces, ["one\n"])
  await sandbox.files.write("go-on", "")
  assert.equal((await running.wait()).stdout, "one\ntwo\n")
  assert.deepEqual(pieces.slice().sort(), ["bad\n", "one\n", "two\n"])
})

test("standard input", async () => {
  const running = await sandbox.commands.run("cat", { background: true, stdin: true })
  await sandbox.commands.sendStdin(running.pid, "typed\n")
  assert.ok((await sandbox.commands.list()).some((each) => each.pid === running.pid))
  const other = await sandbox.commands.connect(running.pid)
  assert.equal(other.pid, running.pid)
  await eventually(() => running.stdout === "typed\n")
  await sandbox.commands.closeStdin(running.pid)
  assert.equal((await running.wait()).stdout, "typed\n")
  const killed = await sandbox.commands.run("sleep 600", { background: true })
  assert.equal(await sandbox.commands.kill(killed.pid), true)
  await assert.rejects(killed.wait(), CommandExitError)
})

test("files", async () => {
  const bytes = new Uint8Array(1_000_000).fill(255)
  await sandbox.files.write("folder/one.txt", "one")
  await sandbox.files.write("folder/two.bin", bytes.buffer)
  assert.equal(await sandbox.files.read("folder/one.txt"), "one")
  assert.deepEqual(Buffer.from(await sandbox.files.read("folder/two.bin", { format: "bytes" })), Buffer.from(bytes))
  assert.deepEqual((await sandbox.files.list("folder")).map((each) => each.name), ["one.txt", "two.bin"])
  const info = await sandbox.files.getInfo("folder/one.txt")
  assert.deepEqual([info.type, info.size, info.owner], [FileType.FILE, 3, "user"])
  await sandbox.files.write([{ path: "many/a", data: "a" }, { path: "many/b", data: "b" }])
  assert.equal(await sandbox.files.makeDir("many"), false)
  await sandbox.files.rename("many/a", "many/c")
  assert.equal(await sandbox.files.exists("many/a"), false)
  await sandbox.files.remove("many")
  await assert.rejects(sandbox.files.read("many/c"), FileNotFoundError)
})

test("signed URLs", async () => {
  await sandbox.files.write("signed.txt", "signed")
  const got = await fetch(await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: 60 }))
  assert.deepEqual([got.status, await got.text()], [200, "signed"])
  const form = new FormData()
  form.append("file", new Blob(["sent"]), "sent.txt")
  const sent = await fetch(await sandbox.uploadUrl("sent.txt", { useSignatureExpiration: 60 }), { method: "POST", body: form })
  assert.equal(sent.status, 200)
  assert.equal(await sandbox.files.read("sent.txt"), "sent")
  const other = (await sandbox.downloadUrl("signed.txt", { useSignatureExpiration: 60 })).replace("signed.txt", "sent.txt")
  assert.equal((await fetch(other)).status, 401)
})

test("watching", async () => {
  await sandbox.files.makeDir("watched")
  const events = []
  const handle = await sandbox.files.watchDir("watched", (event) => void events.push(`${event.type} ${event.name}`))
  await sandbox.files.write("watched/new.txt", "new")
  assert.ok(await eventually(() => events.includes("create new.txt")), events.join())
  await handle.stop()
})

test("a terminal", async () => {
  let shown = ""
  const decoder = new TextDecoder()
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => void (shown += decoder.decode(data)) })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("echo $((6 * 7)); stty size\n"))
  assert.ok(await eventually(() => shown.includes("42") && shown.includes("24 80")), shown)
  await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 })
  await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode("stty size\n"))
  assert.ok(await eventually(() => shown.includes("30 100")), shown)
  assert.equal(await sandbox.pty.kill(terminal.pid), true)
  await assert.rejects(terminal.wait())
})

test("what is known of a sandbox", async () => {
  const found = await Sandbox.list({ query: { metadata: { suite: "node" } } }).nextItems()
  assert.ok(found.some((each) => each.sandboxId === sandbox.sandboxId))
  await sandbox.setTimeout(600_000)
  const info = await sandbox.getInfo()
  assert.ok(info.endAt - Date.now() > 500_000)
  assert.equal(await sandbox.isRunning(), true)
  const again = await Sandbox.connect(sandbox.sandboxId)
  assert.equal((await again.commands.run("echo $COLOUR")).stdout, "red\n")
})

test("ports", async () => {
  assert.equal((await fetch(url(sandbox, 8000))).status, 502)
  const server = await sandbox.commands.run(SERVER, { background: true })
  assert.ok(await eventually(async () => (await fetch(url(sandbox, 8000))).status === 200))
  await server.kill()
})

test("ports that need a token", async () => {
  const other = await Sandbox.create({ network: { allowPublicTraffic: false } })
  try {
    assert.equal((await fetch(url(other, 8000))).status, 403)
    const headers = { "e2b-traffic-access-token": other.trafficAccessToken }
    assert.equal((await fetch(url(other, 8000), { headers })).status, 502)
  } finally {
    await other.kill()
  }
})

test("a pause, and a request that ends it", async () => {
  const other = await Sandbox.create({ timeoutMs: 120_000, lifecycle: { onTimeout: "pause", autoResume: true } })
  try {
    await other.commands.run(SERVER, { background: true })
    assert.ok(await eventually(async () => (await fetch(url(other, 8000))).status === 200))
    assert.equal(await other.pause(), true)
    assert.equal((await other.getInfo()).state, "paused")
    assert.deepEqual((await Promise.all([1, 2, 3].map(() => fetch(url(other, 8000))))).map((each) => each.status), [200, 200, 200])
    assert.equal((await other.getInfo()).state, "running")
  } finally {
    await other.kill()
  }
})
