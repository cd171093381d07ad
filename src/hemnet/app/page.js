// What happens when something is touched. The server is sent numbers and images, nothing else;
// the HTML it answers with has every name in it escaped.
"use strict";

const find = (place) => document.querySelector(place);
const main = find("main");
const settings = JSON.parse(main.dataset.settings);
const [x, y] = [find("#x"), find("#y")];
const session = [...crypto.getRandomValues(new Uint8Array(16))]
  .map((byte) => byte.toString(16).padStart(2, "0")).join("");

// What the controls say; null is what the model itself does.
let query = {};
let size = null; // width and height of the user's image
let listed = []; // bases that explain the pixel
let images = 0; // images asked for; only the last one's answer counts

// Sliders: a range and a number field that show the same value.

function slider(name, changed) {
  const [number, range] = [find(`#${name} [type=number]`), find(`#${name} [type=range]`)];
  const put = (value) => { number.value = range.value = value; };
  const take = (text) => {
    const given = Number(text);
    if (text === "" || !Number.isFinite(given)) { number.value = range.value; return; }
    range.value = given; // the range rounds it and keeps it within its limits
    number.value = range.value;
    changed(Number(range.value));
  };
  range.addEventListener("input", () => { number.value = range.value; changed(Number(range.value)); });
  number.addEventListener("change", () => take(number.value));
  return {
    put,
    value: () => Number(range.value),
    most: (value) => { number.max = range.max = value; },
    free: (yes) => { number.disabled = range.disabled = !yes; },
  };
}

const opacity = slider("opacity", (value) => main.style.setProperty("--tint", value));
const shown = slider("shown", (value) => ask({ shown: value }));
const iterations = slider("iterations", (value) => ask({ iterations: value }));
const step = slider("step", (value) => ask({ step_size: value }));
const keep = find("#keep input");
keep.addEventListener("change", () => {
  step.free(settings.steps && !keep.checked);
  ask({ step_size: keep.checked ? null : step.value() });
});
opacity.put(opacity.value());

function ownSettings() {
  query = { ...query, iterations: null, step_size: null, shown: settings.iterations };
  iterations.put(settings.iterations);
  shown.most(Math.max(2, settings.iterations));
  shown.put(settings.iterations);
  step.put(settings.step);
  keep.checked = settings.several;
  step.free(settings.steps && !settings.several);
}

find("#reset").addEventListener("click", () => { ownSettings(); ask({}); });

// Messages

function trouble(place, text) {
  const line = document.createElement("p");
  line.className = "status trouble";
  line.setAttribute("role", "alert");
  line.textContent = text.charAt(0).toUpperCase() + text.slice(1);
  find(place).replaceChildren(line);
}

async function post(path, body, type) {
  let answer;
  try {
    answer = await fetch(path, { method: "POST", body, headers: { "Content-Type": type } });
  } catch {
    throw new Error("the explorer does not answer: is it still running?");
  }
  if (!answer.ok) {
    const { error } = await answer.json().catch(() => ({}));
    throw new Error(error ?? `the explorer answered with status ${answer.status}`);
  }
  return answer.json();
}

const send = (path, fields) => post(path, JSON.stringify({ session, ...fields }), "application/json");

// A new image; after a mistake only the message, and the rest stays as it is.

async function openImage(asking) {
  const number = ++images;
  const picture = find("#picture");
  picture.setAttribute("aria-busy", "true");
  try {
    const found = await asking();
    if (number !== images) return;
    find("#status").innerHTML = found.status;
    picture.innerHTML = found.stage;
    find("#legend").innerHTML = found.legend;
    const download = find("#download");
    download.href = `class-map?session=${session}`;
    download.setAttribute("download", "");
    download.removeAttribute("aria-disabled");
    size = found.size;
    [x.value, y.value] = found.place;
    ownSettings();
    query.bases = found.view.bases;
    draw(found.view);
  } catch (error) {
    if (number === images) trouble("#status", error.message);
  } finally {
    if (number === images) picture.removeAttribute("aria-busy");
  }
}

function file(chosen) {
  if (!chosen) return;
  if (chosen.size > settings.bytes) {
    trouble("#status", `${chosen.name}: the file size exceeds the limit of `
      + `${settings.bytes / 1e6} MB (--max-upload).`);
    return;
  }
  const address = new URLSearchParams({ session, name: chosen.name || "image" });
  openImage(() => post(`image?${address}`, chosen, "application/octet-stream"));
}

const input = find("#upload input");
find("#upload button").addEventListener("click", () => input.click());
input.addEventListener("change", () => { file(input.files[0]); input.value = ""; });
for (const name of ["dragover", "dragleave", "drop"]) { // anywhere on the page
  document.addEventListener(name, (event) => {
    event.preventDefault();
    find("#upload").classList.toggle("over", name === "dragover");
    if (name === "drop") file(event.dataTransfer.files[0]);
  });
}
find("#samples").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-sample]");
  if (button) openImage(() => send("sample", { sample: Number(button.dataset.sample) }));
});

// The EM of the user's image. While an answer is awaited only the last query is kept.

let asking = false;
let again = false;

async function ask(change) {
  Object.assign(query, change);
  again = true;
  if (asking) return;
  asking = true;
  while (again) {
    again = false;
    const number = images;
    const place = [x, y].map((one) => (one.value === "" ? null : Math.round(Number(one.value))));
    try {
      const view = await send("view", { ...query, x: place[0], y: place[1] });
      if (number === images) draw(view);
    } catch (error) {
      if (number === images) trouble("#bars", error.message);
    }
  }
  asking = false;
}

function draw(view) {
  find("#maps").innerHTML = view.maps;
  find("#chart").innerHTML = view.chart;
  find("#bars").innerHTML = view.bars;
  listed = view.listed;
  find("#adopt").hidden = !listed.length;
  shown.most(Math.max(2, view.iterations));
  if (!again) { query.shown = view.shown; shown.put(view.shown); }
  tokens();
}

find("#picture").addEventListener("click", (event) => {
  const stage = event.target.closest(".stage");
  if (!stage) return;
  const box = stage.getBoundingClientRect();
  const shares = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  [x.value, y.value] = shares.map((s, i) =>
    Math.max(0, Math.min(Math.floor(s * size[i]), size[i] - 1)));
  ask({});
});
find("#place").addEventListener("submit", (event) => { event.preventDefault(); ask({}); });
find("#adopt").addEventListener("click", () => ask({ bases: listed.slice(0, settings.most) }));

// The bases shown: each can be removed, others added.

const choice = find("#bases select");
const more = find("#bases .more");

function tokens() {
  const bases = query.bases;
  find("#bases .tokens").replaceChildren(...bases.map((basis) => {
    const [item, remove] = [document.createElement("li"), document.createElement("button")];
    item.className = "token";
    remove.type = "button";
    remove.className = "token-remove";
    remove.setAttribute("aria-label", `Remove basis ${basis}`);
    remove.textContent = "×";
    remove.addEventListener("click", () => {
      setBases(query.bases.filter((other) => other !== basis));
      choice.focus();
    });
    item.append(`basis ${basis} `, remove);
    return item;
  }));
  for (const option of choice.options) option.disabled = bases.includes(Number(option.value));
  if (choice.selectedOptions[0]?.disabled) {
    choice.value = [...choice.options].find((option) => !option.disabled)?.value ?? "";
  }
  more.disabled = bases.length >= settings.most || bases.length >= settings.bases;
}

function setBases(bases) {
  query.bases = bases;
  tokens();
  ask({});
}

more.addEventListener("click", () => {
  if (choice.value) setBases([...query.bases, Number(choice.value)]);
});
find("#bases .clear").addEventListener("click", () => setBases([]));

window.addEventListener("pagehide", () => navigator.sendBeacon(
  "leave", new Blob([JSON.stringify({ session })], { type: "application/json" })));
// A page that comes back from the browser's memory has left: it begins anew.
window.addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

query = { bases: [] };
ownSettings();
openImage(() => send("sample", { sample: 0 }));
