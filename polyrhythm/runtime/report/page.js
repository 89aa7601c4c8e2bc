"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const find = (query, inside = document) => inside.querySelector(query);
const make = (tag, attributes = {}, ...children) => {
  const made = tag.startsWith("svg:") ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value); else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
};

// Everything that comes from a line is registered under the keys of that line, and lights up with it.
const shown = new Map();
let chosen = new Set();
const register = (element, keys) => {
  for (const key of keys) { if (!shown.has(key)) shown.set(key, []); shown.get(key).push(element); }
  if (keys.some((key) => chosen.has(key))) element.classList.add("on");
};
const select = (keys, from) => {
  for (const element of document.querySelectorAll(".on")) element.classList.remove("on");
  chosen = new Set(keys);
  const lit = keys.flatMap((key) => shown.get(key) || []);
  for (const element of lit) element.classList.add("on");
  for (const query of ["#source", "#schedule", "#storage"]) {
    const first = lit.find((element) => element.isConnected && element.closest(query));
    if (first && !first.closest(from || "none")) first.scrollIntoView({ block: "nearest" });
  }
  find("#clear").hidden = !keys.length;
};
const tip = find("#tip");
const explain = (element, text) => {
  element.addEventListener("mousemove", (event) => {
    tip.hidden = false;
    tip.textContent = typeof text === "function" ? text() : text;
    tip.style.left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8) + "px";
    tip.style.top = Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8) + "px";
    event.stopPropagation();
  });
  element.addEventListener("mouseleave", () => { tip.hidden = true; });
};

// Terms over the bounds: [constant, [factor, atom, ...], ...].
const bounds = Object.fromEntries(data.bounds.map((bound) => [bound.name, bound.value]));
const atom = (a) => typeof a === "string" ? bounds[a] ?? 1
  : a.floor ? Math.floor(term(a.floor) / a.by) : a.min ? Math.min(...a.min.map(term)) : Math.max(...a.max.map(term));
const term = ([constant, ...products]) => products.reduce((sum, [factor, ...atoms]) => sum + atoms.reduce((n, a) => n * atom(a), factor), constant);
const size = (n) => {
  if (Math.abs(n) < 1000) return `${n} B`;
  const unit = Math.min(4, Math.floor(Math.log10(Math.abs(n)) / 3));
  return `${(n / 1000 ** unit).toPrecision(3)} ${["B", "kB", "MB", "GB", "TB"][unit]}`;
};
const seconds = (s) => s >= 1 ? `${s.toFixed(2)} s` : s >= 1e-3 ? `${(s * 1e3).toFixed(2)} ms` : `${(s * 1e6).toFixed(1)} us`;

find("h1").textContent = `${data.title}: ${data.nodes.length} tensors, ${data.blocks} blocks, ${data.backend}`;
find("#clear").addEventListener("click", () => select([]));

function source() {
  const keys = new Set([...data.nodes, ...data.places, ...data.notes].flatMap((one) => one.at));
  const panel = find("#source");
  data.files.forEach((file, number) => {
    panel.append(make("h3", {}, file.name));
    for (const [line, text] of file.lines) {
      const key = `${number}:${line}`, known = keys.has(key);
      const row = make("div", { class: known ? "code known" : "code", "data-key": key }, make("i", {}, String(line)), text);
      if (known) { row.addEventListener("click", () => select([key], "#source")); register(row, [key]); }
      panel.append(row);
    }
  });
  if (data.parts.length) panel.append(make("h3", {}, "parts of libraries"));
  data.parts.forEach((part, number) => {
    const row = make("div", { class: "code known", "data-key": `p${number}`, onclick: () => select([`p${number}`], "#source") }, make("i"), part);
    register(row, [`p${number}`]);
    panel.append(row);
  });
}

// Layers from left to right by longest paths, ignoring edges that close a cycle; twice sorted by where neighbours are.
function layers(count, edges) {
  const into = Array.from({ length: count }, () => []), state = new Uint8Array(count), layer = new Int32Array(count);
  for (const [from, to] of edges) if (from !== to) into[to].push(from);
  for (let start = 0; start < count; start++) {
    const stack = [[start, 0]];
    if (state[start]) continue;
    state[start] = 1;
    while (stack.length) {
      const top = stack[stack.length - 1], [node, next] = top;
      if (next < into[node].length) {
        top[1]++;
        const before = into[node][next];
        if (!state[before]) { state[before] = 1; stack.push([before, 0]); }
      } else {
        state[node] = 2;
        layer[node] = Math.max(0, ...into[node].filter((b) => state[b] === 2 && b !== node).map((b) => layer[b] + 1));
        stack.pop();
      }
    }
  }
  const columns = [];
  layer.forEach((l, node) => { (columns[l] = columns[l] || []).push(node); });
  const at = new Float64Array(count);
  for (let sweep = 0; sweep < 2; sweep++) {
    for (const column of columns) {
      column.forEach((node, row) => { const near = into[node].map((b) => at[b]); at[node] = near.length ? near.reduce((a, b) => a + b) / near.length : row; });
      column.sort((a, b) => at[a] - at[b]);
      column.forEach((node, row) => { at[node] = row; });
    }
  }
  return columns;
}

const WIDTH = 150, HEIGHT = 22, GAP = 26, READABLE = 1.5, ROW = 1000, BEND = 60;
const folded = new Set(data.nodes.length > 150 ? data.groups.keys() : []);
const numbers = new Map(data.nodes.map((node, number) => [node.name, number]));
let camera = null;

// Sizes and offsets of some boxes in layers, from left to right or from above, whichever is the better shape for a
// screen: [width, height, [x, y] of each]. A layer that is too wide goes on in another row.
function placed(sizes, edges) {
  const columns = layers(sizes.length, edges);
  const [across, down] = [0, 1].map((axis) => {
    const spots = sizes.map(() => [0, 0]);
    let along = 0, most = 0;
    for (const column of columns) {
      let beside = 0, thick = 0;
      for (const box of column) {
        if (axis && beside && beside + sizes[box][0] > ROW) { along += thick + 10; most = Math.max(most, beside); beside = thick = 0; }
        spots[box] = axis ? [beside, along] : [along, beside];
        beside += sizes[box][1 - axis] + 10;
        thick = Math.max(thick, sizes[box][axis]);
      }
      along += thick + (axis ? GAP : GAP * 2); most = Math.max(most, beside);
    }
    const length = Math.max(0, along - (axis ? GAP : GAP * 2)), breadth = Math.max(0, most - 10);
    return axis ? [breadth, length, spots] : [length, breadth, spots];
  });
  const scale = ([width, height]) => Math.max(width / 2, height);
  return scale(down) < scale(across) ? down : across;
}

function graph() {
  const svg = find("#graph svg"), view = make("svg:g");
  const members = data.groups.map(() => []);
  data.nodes.forEach((node, number) => members[node.group].push(number));
  const edges = data.nodes.flatMap((node, to) => node.reads.map((name) => [numbers.get(name), to]));
  const inner = members.map((group, number) => {
    if (folded.has(number)) return [Math.max(WIDTH, 7 * data.groups[number].length + 50), HEIGHT + 4, []];
    const local = new Map(group.map((node, index) => [node, index]));
    // What closes a recurrence does not decide where it stands: the graph flows from the step before to the next.
    const inside = edges.filter(([a, b]) => local.has(a) && local.has(b) && data.nodes[b].kind !== "recurrent").map(([a, b]) => [local.get(a), local.get(b)]);
    const [width, height, spots] = placed(group.map(() => [WIDTH, HEIGHT]), inside);
    return [Math.max(width, 7 * data.groups[number].length + 20) + 16, height + 34, spots];
  });
  const between = edges.map(([a, b]) => [data.nodes[a].group, data.nodes[b].group]).filter(([a, b]) => a !== b);
  const unique = [...new Map(between.map((edge) => [edge.join(), edge])).values()];
  const [width, height, spots] = placed(inner, unique);
  const where = data.nodes.map(() => null);
  const boxes = data.groups.map((name, number) => {
    const [w, h, own] = inner[number], [x, y] = spots[number];
    const box = make("svg:g", { class: "group", "data-group": number }, make("svg:rect", { x, y, width: w, height: h, rx: 4 }));
    const label = make("svg:text", { x: x + 8, y: y + 16 });
    label.textContent = `${folded.has(number) ? "+" : "−"} ${name} (${members[number].length})`;
    box.append(label);
    box.addEventListener("click", () => { if (folded.has(number)) folded.delete(number); else folded.add(number); graph(); });
    register(box, folded.has(number) ? [...new Set(members[number].flatMap((n) => data.nodes[n].at))] : []);
    members[number].forEach((node, index) => {
      where[node] = folded.has(number) ? [x, y, w, h] : [x + 8 + own[index][0], y + 26 + own[index][1], WIDTH, HEIGHT];
    });
    return box;
  });
  const paths = new Map();
  for (const [from, to] of edges) {
    const [ax, ay, aw, ah] = where[from], [bx, by, bw, bh] = where[to];
    if (ax === bx && ay === by) continue;
    const below = by > ay + ah;
    const a = below ? [ax + aw / 2, ay + ah] : [ax + aw, ay + ah / 2], b = below ? [bx + bw / 2, by] : [bx, by + bh / 2];
    const bend = below ? [0, (b[1] - a[1]) / 2] : [Math.min(BEND, Math.max(30, Math.abs(b[0] - a[0]) / 2)), 0];
    paths.set([a, b].join(), make("svg:path", { d: `M${a}C${a[0] + bend[0]},${a[1] + bend[1]} ${b[0] - bend[0]},${b[1] - bend[1]} ${b}` }));
  }
  const nodes = data.nodes.map((node, number) => {
    if (folded.has(node.group)) return "";
    const [x, y, w, h] = where[number], name = node.label || node.name;
    const kind = `${node.kind} ${data.outputs.includes(node.name) ? "output" : ""}`;
    const box = make("svg:g", { class: kind, "data-node": node.name }, make("svg:rect", { x, y, width: w, height: h, rx: 3 }));
    const label = make("svg:text", { x: x + 5, y: y + 15 });
    label.textContent = name.length > 21 ? name.slice(0, 20) + "…" : name;
    box.append(label);
    explain(box, `${node.name}: ${node.type}\n${node.definitions.join("\n")}\n${node.what === node.label ? "" : node.what}`.trim());
    box.addEventListener("click", (event) => { event.stopPropagation(); select(node.at, "#graph"); });
    register(box, node.at);
    return box;
  });
  // Edges lie above the groups that they run through, and below the names of folded ones.
  const flat = boxes.filter((_, number) => folded.has(number)), open = boxes.filter((_, number) => !folded.has(number));
  view.append(...open, ...paths.values(), ...flat, ...nodes);
  svg.replaceChildren(view);
  svg.dataset.width = width; svg.dataset.height = height;
  if (!camera) fit(READABLE); else look();
  find("#graph small").textContent = `drag to move, wheel to zoom, click a group to fold it; ${folded.size} of ${data.groups.length} groups folded`;
}
const look = () => find("#graph svg").setAttribute("viewBox", camera.join(" "));
function fit(most = Infinity) {
  const svg = find("#graph svg"), box = svg.getBoundingClientRect();
  let scale = Math.max(1, (+svg.dataset.width + BEND) / box.width, (+svg.dataset.height + 16) / box.height) * 1.02;
  scale = Math.min(scale, most);
  camera = [-BEND / 2, -8, box.width * scale, box.height * scale];
  look();
}
function moving() {
  const svg = find("#graph svg");
  let from = null;
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = svg.getBoundingClientRect(), by = Math.exp(event.deltaY / 500);
    const x = (event.clientX - box.left) / box.width, y = (event.clientY - box.top) / box.height;
    camera = [camera[0] + camera[2] * x * (1 - by), camera[1] + camera[3] * y * (1 - by), camera[2] * by, camera[3] * by];
    look();
  }, { passive: false });
  svg.addEventListener("mousedown", (event) => { from = [event.clientX, event.clientY, ...camera]; });
  addEventListener("mouseup", () => { from = null; });
  addEventListener("mousemove", (event) => {
    if (!from) return;
    const scale = camera[2] / svg.getBoundingClientRect().width;
    camera = [from[2] - (event.clientX - from[0]) * scale, from[3] - (event.clientY - from[1]) * scale, camera[2], camera[3]];
    look();
  });
  find("#unfold").addEventListener("click", () => { folded.clear(); camera = null; graph(); });
  find("#fold").addEventListener("click", () => { data.groups.forEach((_, number) => folded.add(number)); camera = null; graph(); });
  find("#fit").addEventListener("click", () => fit());
}

// The seconds of an item: its own if it is a block, else those of everything inside.
const spent = (item) => item.kind === "block" ? (data.profile?.sites[item.number] ?? 0) : item.body.reduce((sum, inner) => sum + spent(inner), 0);
const heat = (item) => {
  if (!data.profile) return [];
  const s = spent(item), share = data.profile.seconds ? Math.round(100 * s / data.profile.seconds) : 0;
  return [make("span", { class: "heat" }, s ? `${seconds(s)} ${String(share).padStart(2)}%` : "")];
};
function tree(items) {
  return items.map((item) => {
    if (item.kind === "block") {
      const lines = item.lines.length ? item.lines : [`${item.name} stays where it is`];
      const row = make("div", { class: item.lines.length ? "block" : "block still", "data-block": item.number, onclick: () => select(item.at, "#schedule") }, ...heat(item), lines.join("\n"));
      explain(row, `${item.name}: ${item.operations} operations\nreads ${item.reads.join(", ") || "nothing"}\nwrites ${item.writes.join(", ") || "nothing"}`);
      register(row, item.at);
      return row;
    }
    const summary = make("summary", {}, ...heat(item), item.text, make("span", { class: "note" }, item.note ? `  # ${item.note}` : ""));
    register(summary, item.at);
    return make("details", { open: "" }, summary, ...tree(item.body));
  });
}

const FEW = 40;
let all = false;
function timeline() {
  const panel = find("#storage .timeline"), total = Math.max(1, data.blocks);
  const rows = data.places.map((place) => ({ ...place, now: Math.max(0, term(place.bytes)) })).sort((a, b) => b.now - a.now);
  const live = new Float64Array(total + 1);
  for (const place of rows) { live[place.first] += place.now; live[place.last + 1] -= place.now; }
  for (let n = 1; n <= total; n++) live[n] += live[n - 1];
  const most = Math.max(...live.slice(0, total)), bars = Math.min(total, 300);
  const track = make("div", { class: "track" });
  for (let n = 0; n < bars; n++) {
    const from = Math.floor(n * total / bars), to = Math.max(from + 1, Math.floor((n + 1) * total / bars));
    const high = Math.max(...live.slice(from, to));
    track.append(make("b", { style: `left:${100 * n / bars}%;width:${100 / bars}%;height:${most ? 100 * high / most : 0}%` }));
  }
  const head = make("div", { class: "row head" }, make("span", {}, "live over the schedule"), make("span", { class: "size" }, size(most)), track);
  explain(track, `the most that is live at one time: ${most.toLocaleString("en")} bytes, temporaries of blocks not counted`);
  const lines = rows.slice(0, all ? rows.length : FEW).map((place) => {
    const bar = make("b", { style: `left:${100 * place.first / total}%;width:${100 * (place.last + 1 - place.first) / total}%` });
    const row = make("div", { class: `row ${place.kind}`, "data-place": place.name, onclick: () => select(place.at, "#storage") },
      make("span", {}, place.name), make("span", { class: "size" }, size(place.now)), make("div", { class: "track" }, bar));
    explain(row, `${place.kind} ${place.name}: ${place.type}${place.slots ? ` (${place.slots})` : ""}\n${place.now.toLocaleString("en")} bytes, live from block ${place.first} to ${place.last}\n${place.why || (place.kind === "input" ? "given by the caller" : "one value, from a block to the next")}\nread by ${place.readers.join(", ") || "nothing"}`);
    register(row, place.at);
    return row;
  });
  panel.replaceChildren(head, ...lines);
  if (rows.length > FEW) panel.append(make("button", { onclick: () => { all = !all; timeline(); } }, all ? "show the largest" : `show all ${rows.length}`));
  const sum = rows.reduce((n, place) => n + place.now, 0);
  find("#storage small").textContent = `${size(sum)} in ${rows.length} places, at most ${size(most)} live at one time`;
}
function sliders() {
  for (const bound of data.bounds) {
    const value = make("output", {}, String(bound.value));
    const slider = make("input", { type: "range", min: 0, max: 1000, "data-bound": bound.name });
    slider.value = String(Math.round(1000 * Math.log(Math.max(1, bound.value)) / Math.log(bound.most || 2)));
    slider.addEventListener("input", () => {
      bounds[bound.name] = Math.round(Math.exp(slider.value / 1000 * Math.log(bound.most)));
      value.textContent = String(bounds[bound.name]);
      timeline();
    });
    find(".sliders").append(make("label", {}, bound.name, slider, value));
  }
}

function passes() {
  const panel = find("#passes div");
  for (const name of data.passes) {
    const notes = data.notes.filter((note) => note.by === name), did = notes.filter((note) => !note.refused);
    const saved = [];
    const operations = did.reduce((n, note) => n + note.operations, 0), launches = did.reduce((n, note) => n + note.launches, 0);
    const bytes = did.reduce((n, note) => n + term(note.bytes), 0);
    if (operations) saved.push(`${operations} operations a point`);
    if (launches) saved.push(`${launches} launches a point`);
    if (bytes) saved.push(bytes > 0 ? `${size(bytes)}` : `${size(-bytes)} stored more`);
    const line = did.length ? `${did.length} change${did.length > 1 ? "s" : ""}${saved.length ? `; saved ${saved.join(", ")}` : ""}` : "changed nothing";
    const part = make("details", { "data-pass": name }, make("summary", {}, make("b", {}, name), ` ${line}${notes.length > did.length ? `; refused ${notes.length - did.length}` : ""}`));
    part.addEventListener("toggle", () => {
      if (part.childElementCount > 1) return;
      for (const note of notes) {
        const row = make("p", { class: note.refused ? "refused" : "", onclick: () => select(note.at, "#passes") }, `${note.refused ? "refused " : ""}${note.rule}: ${note.what}`);
        register(row, note.at);
        part.append(row);
      }
    });
    panel.append(part);
  }
}

const table = (heads, rows) => make("table", {}, make("tr", {}, ...heads.map((head) => make("th", {}, head))), ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell)))));
function time() {
  const panel = find("#time div");
  panel.append(table(["phase", "time"], Object.entries(data.seconds).map(([phase, s]) => [phase, seconds(s)])));
  if (data.compilations.length) panel.append(table(["compiled for", "why", "time", "allocates"], data.compilations.map((c) => [Object.entries(c.capacities).map(([n, v]) => `${n} ≤ ${v}`).join(", ") || "any bounds", c.why, seconds(c.seconds), size(c.bytes)])));
  if (!data.profile) { panel.append(make("p", { class: "note" }, "time per loop and block: call program.profile(...) first")); return; }
  const loops = new Map();
  const visit = (items, around) => items.forEach((item) => item.kind === "block" ? loops.set(item.name, around) : visit(item.body, item.kind === "for" ? item.text : around));
  visit(data.schedule, "");
  const rows = Object.entries(data.profile.blocks).sort((a, b) => b[1] - a[1]).slice(0, 30);
  panel.append(make("p", {}, `profiled run: ${seconds(data.profile.seconds)}`), table(["block", "loop", "time", "share"], rows.map(([name, s]) => [name, loops.get(name) || "", seconds(s), `${(100 * s / data.profile.seconds).toFixed(1)} %`])));
  const samples = data.profile.memory;
  if (samples.length > 1) {
    const last = samples[samples.length - 1][0], high = Math.max(...samples.map((s) => s[1])), low = Math.min(...samples.map((s) => s[1]));
    const points = samples.map(([at, bytes]) => `${(1000 * at / last).toFixed(1)},${(100 - 96 * (bytes - low) / Math.max(1, high - low)).toFixed(1)}`);
    const svg = make("svg:svg", { viewBox: "0 0 1000 104", preserveAspectRatio: "none", style: "height:6rem;cursor:default", class: "memory" }, make("svg:path", { d: `M${points.join("L")}` }));
    panel.append(make("p", {}, `memory of the process over the run: ${size(low)} to ${size(high)}`), svg);
  }
}
function collectives() {
  if (!data.collectives.length) return;
  find("#collectives").hidden = false;
  find("#collectives div").append(make("pre", {}, data.collectives.join("\n")));
}

source();
graph();
moving();
find("#schedule .tree").append(...tree(data.schedule));
sliders();
timeline();
passes();
collectives();
time();
window.readyAfter = performance.now();
