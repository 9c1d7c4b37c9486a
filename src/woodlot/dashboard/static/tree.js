// Draws a tree as one role knows it. Levels are loaded when somebody opens them. A change of the role keeps the tree in
// place: its shape is the same for every role, and what is known of its nodes is not.
"use strict";

const place = document.getElementById("tree");
const source = place.dataset.source;
let role = place.dataset.role;
const BOX = { width: 124, height: 46, gapX: 14, gapY: 44 };
const SVG = "http://www.w3.org/2000/svg";
const nodes = new Map();
const loaded = [null]; // what was loaded, to load it again as another role
let root = null, way = new Set(), chosen = null;
const owners = [];

async function load(from, isNew = true) {
  const query = new URLSearchParams({ role, levels: 4 });
  if (from !== null) query.set("root", from);
  const reply = await fetch(`${source}/nodes?${query}`);
  const found = await reply.json();
  if (!reply.ok) { place.textContent = found.error; return; }
  for (const node of found.nodes) nodes.set(node.id, node);
  if (root === null) { root = found.root; chosen = root; }
  if (isNew && from !== null) loaded.push(from);
  draw();
}

async function look(url) {
  const reply = await fetch(url, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await reply.text(), "text/html");
  const there = page.getElementById("tree");
  if (!reply.ok || !there) { location.href = url; return; }
  document.getElementById("around").replaceWith(page.getElementById("around"));
  history.replaceState(null, "", url);
  place.dataset.role = role = there.dataset.role;
  way = new Set();
  nodes.clear();
  for (const from of loaded) await load(from, false);
  place.classList.remove("changed");
  void place.offsetWidth; // so that the change is shown again
  place.classList.add("changed");
  document.querySelector(".switch [aria-current]").focus({ preventScroll: true });
}

function layout(id, depth, next) {
  const node = nodes.get(id);
  node.depth = depth;
  if (node.left === undefined) { node.x = next.x++; return; }
  layout(node.left, depth + 1, next);
  layout(node.right, depth + 1, next);
  node.x = (nodes.get(node.left).x + nodes.get(node.right).x) / 2;
}

function lines(node) {
  if (node.leaf) {
    if (node.answer === undefined) return ["leaf", "answer not known"];
    if (Array.isArray(node.answer)) return [node.answer.length ? `${node.answer[0][0]} ${(100 * node.answer[0][1]).toFixed(0)} %` : "no rows", `${+node.weight.toFixed(1)} rows`];
    return [node.answer === null ? "no rows" : String(+node.answer.toPrecision(4)), `${+node.weight.toFixed(1)} rows`];
  }
  if (node.code !== undefined) return [node.owner, `feature ${node.code}`];
  if (node.name !== undefined) return [node.name, node.test];
  return ["other party", "question not known"];
}

const make = (name, attributes, text) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const cut = (text, most) => text.length > most ? text.slice(0, most - 1) + "…" : text;

function draw() {
  const next = { x: 0 };
  layout(root, 0, next);
  const shown = [];
  (function visit(id) { const n = nodes.get(id); shown.push(n); if (n.left !== undefined) { visit(n.left); visit(n.right); } })(root);
  const depth = Math.max(...shown.map((n) => n.depth)) + 1;
  const stepX = BOX.width + BOX.gapX, stepY = BOX.height + BOX.gapY;
  const width = Math.max(next.x * stepX + 30, place.clientWidth - 4), height = depth * stepY + 20;
  const shift = (width - next.x * stepX) / 2;
  const at = (n) => [shift + n.x * stepX + stepX / 2, 16 + n.depth * stepY];
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
  for (const n of shown) {
    if (n.left === undefined) continue;
    const [x, y] = at(n);
    for (const child of [n.left, n.right]) {
      const [cx, cy] = at(nodes.get(child));
      const mid = (y + BOX.height + cy) / 2;
      const taken = way.has(n.id) && way.has(child);
      svg.append(make("path", { class: taken ? "edge way" : "edge", d: `M${x} ${y + BOX.height}C${x} ${mid} ${cx} ${mid} ${cx} ${cy}` }));
      if (n.test !== undefined) svg.append(make("text", { class: "branch", x: (x + 2 * cx) / 3 + (child === n.left ? -9 : 9), y: mid + 8 }, child === n.left ? "yes" : "no"));
    }
  }
  // all of them before the first is drawn: a colour follows from a party's place among them
  for (const n of shown) if (n.owner !== undefined && !owners.includes(n.owner)) owners.push(n.owner);
  owners.sort();
  for (const n of shown) {
    const [x, y] = at(n);
    const known = n.owner !== undefined || n.name !== undefined;
    const group = make("g", { class: ["node", n.leaf ? "leaf" : "", known ? "own" : "", n.owner === undefined ? "" : "owned", n.more ? "more" : "", way.has(n.id) ? "way" : "", n.id === chosen ? "chosen" : ""].join(" "), "data-id": n.id, role: "treeitem" });
    const box = make("rect", { class: "box", x: x - BOX.width / 2, y, width: BOX.width, height: BOX.height, rx: n.leaf ? 20 : 8 });
    if (n.owner !== undefined) {
      box.style.fill = PARTY_COLOURS[owners.indexOf(n.owner) % PARTY_COLOURS.length];
    }
    const [first, second] = lines(n);
    group.append(make("title", {}, `${first}: ${second}${n.missing_left === undefined ? "" : n.missing_left ? "; missing goes left" : "; missing goes right"}${n.gain === undefined ? "" : `; gain ${n.gain.toPrecision(3)}`}`));
    group.append(box, make("text", { x, y: y + 19 }, cut(first, 14)), make("text", { class: "small", x, y: y + 35 }, cut(second, 18)));
    if (n.more) {
      group.append(make("rect", { class: "badge", x: x - 24, y: y + BOX.height - 4, width: 48, height: 17, rx: 8 }), make("text", { class: "badge-text", x, y: y + BOX.height + 9 }, `+${n.more}`));
      group.addEventListener("click", () => open(n.id));
    } else {
      group.addEventListener("click", () => { chosen = n.id; draw(); });
    }
    svg.append(group);
  }
  const first = !place.querySelector("svg");
  place.replaceChildren(svg);
  if (first) place.scrollLeft = (width - place.clientWidth) / 2;
}

function open(id) { chosen = id; if (nodes.get(id).more) load(id); }

place.addEventListener("keydown", (event) => {
  const node = nodes.get(chosen);
  const parent = [...nodes.values()].find((n) => n.left === chosen || n.right === chosen);
  const to = { ArrowLeft: parent && parent.left, ArrowRight: parent && parent.right, ArrowUp: parent && parent.id, ArrowDown: node.left }[event.key];
  if (event.key === "Enter") open(chosen);
  else if (to === undefined) return;
  else { chosen = to; draw(); }
  event.preventDefault();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest(".switch a");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  look(link.href);
});

document.addEventListener("submit", (event) => {
  if (event.target.id === "choose-tree") chooseTree(event);
  if (event.target.id === "way") showWay(event);
});

function chooseTree(event) {
  event.preventDefault();
  const number = document.getElementById("tree-number").value - 1;
  location.href = `${source.replace(/\/\d+$/, "")}/${number}?role=${encodeURIComponent(role)}`;
}

async function showWay(event) {
  event.preventDefault();
  const query = new URLSearchParams(new FormData(event.target));
  query.set("role", role);
  const reply = await fetch(`${source}/way?${query}`);
  const found = await reply.json();
  const note = document.getElementById("way-note");
  if (!reply.ok) { note.textContent = found.error; return; }
  way = new Set(found.nodes);
  note.textContent = role === "coordinator" ? `${found.nodes.length} nodes: one way` : `${found.nodes.length} nodes are possible as far as ${role} knows`;
  draw();
}

load(null);
