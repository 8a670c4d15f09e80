// What a run did so far, and the panel that shows it.

import { tintOf } from "./paper.js";

const byId = (id) => document.getElementById(id);
const POINTS = 60;

export class Run {
  constructor() {
    this.tokens = 0;
    this.steps = 0; // every pass of the model ends with a token of its own
    this.rejected = 0;
    this.bySource = new Map();
    this.began = null;
    this.ended = null;
    this.speeds = [];
    this.window = [];
  }

  token(provenance) {
    const now = performance.now();
    this.began ??= now;
    this.ended = now;
    this.tokens += 1;
    const source = provenance?.source ?? "target";
    if (source === "target") this.steps += 1;
    else this.bySource.set(source, (this.bySource.get(source) ?? 0) + 1);
    this.rejected += provenance?.rejected?.length ?? 0;
    this.window.push(now);
    if (now - this.window[0] > 400 && this.window.length > 2) {
      this.speeds.push((1000 * (this.window.length - 1)) / (now - this.window[0]));
      this.window = [now];
    }
  }

  get accepted() {
    return [...this.bySource.values()].reduce((a, b) => a + b, 0);
  }

  get speed() {
    if (this.timings?.predicted_per_second) return this.timings.predicted_per_second;
    const ms = this.ended - this.began;
    return ms > 0 ? (1000 * (this.tokens - 1)) / ms : 0;
  }
}

export function show(run) {
  const drafted = run.timings?.draft_n ?? run.accepted + run.rejected;
  const accepted = run.timings?.draft_n_accepted ?? run.accepted;
  byId("speed").textContent = run.speed ? run.speed.toFixed(run.speed < 100 ? 1 : 0) : "–";
  byId("per-step").textContent = run.steps ? (run.tokens / run.steps).toFixed(2) : "–";
  byId("accepted").textContent = drafted
    ? `${Math.round((100 * accepted) / drafted)} %`
    : "–";
  byId("accepted").title = drafted ? `${accepted} of ${drafted} drafted tokens` : "";
  byId("count").textContent = run.tokens || "–";
  legend(run);
  spark(run.speeds.slice(-POINTS));
}

function legend(run) {
  const rows = [...run.bySource].map(([source, n]) => row(source, n, tintOf(source)));
  if (run.steps && rows.length) rows.push(row("the model itself", run.steps, "transparent"));
  byId("legend").replaceChildren(...rows);
}

function row(name, n, tint) {
  const item = document.createElement("li");
  const swatch = document.createElement("i");
  swatch.style.setProperty("--tint", tint);
  const count = document.createElement("b");
  count.textContent = n;
  item.append(swatch, name, count);
  return item;
}

function spark(speeds) {
  const most = Math.max(...speeds, 1);
  const step = 240 / Math.max(speeds.length - 1, 1);
  const points = speeds.map((v, i) => `${(i * step).toFixed(1)},${(38 - (36 * v) / most).toFixed(1)}`);
  byId("spark").firstElementChild.setAttribute("points", points.join(" "));
}
