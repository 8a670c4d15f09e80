// The one text that is being written: begun, stopped, written again for comparison.

import * as drafting from "./drafting.js";
import { show } from "./figures.js";
import { refresh } from "./models.js";
import { write } from "./requests.js";

const byId = (id) => document.getElementById(id);
const state = {
  running: null, // an AbortController
  last: null, // {path, body, text, run}: what can be written again
};

export const isWriting = () => state.running !== null;
export const stop = () => state.running?.abort();

// What is to be said of the last text: why it failed, or was written without drafts.
export function notice(text, { isBad = false, label = "", act = null } = {}) {
  const line = byId("notice");
  line.textContent = text;
  line.classList.toggle("error", isBad);
  line.hidden = !text;
  if (!act) return;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = label;
  button.onclick = act;
  line.append(" ", button);
}

function busy(is, item) {
  state.running = is ? new AbortController() : null;
  item?.classList.toggle("busy", is);
  item?.setAttribute("aria-busy", is);
  byId("send").textContent = is ? "Stop" : "Send";
  document.body.classList.toggle("writing", is);
  if (is) {
    byId("verify").disabled = true;
    verdict("");
    notice("");
  }
}

// `into` gets the pieces; the run is null if it failed or was stopped.
// `finish` gets the run, or null, before anything is said of it; `again` writes the text once more.
export async function perform(request, item, into, { finish, again }) {
  let text = "";
  let run = null;
  busy(true, item);
  try {
    const both = (piece) => {
      text += piece.thought ?? piece.text;
      into(piece);
    };
    run = await write(request, both, state.running.signal);
    show(run);
    state.last = { ...request, text, run };
  } catch (error) {
    const isStop = error.name === "AbortError";
    if (item.isConnected) notice(isStop ? "stopped" : error.message, { isBad: !isStop });
  } finally {
    busy(false, item);
    byId("verify").disabled = !run || request.body.speculative.off === true;
  }
  finish(run);
  if (run) await advise(run, again);
}

async function advise(run, again) {
  refresh().catch(() => { /* only states in a list */ });
  const found = await drafting.explain(run);
  if (!found || isWriting() || !byId("notice").hidden) return; // what stands there matters more
  const fix = () => {
    drafting.fix();
    again();
  };
  notice(found.text, found.canFix ? { label: "Draft in any case", act: fix } : {});
}

export function forget() {
  stop();
  state.last = null;
  byId("verify").disabled = true;
  verdict("");
  notice("");
}

export async function verify() {
  const { path, body, text, run } = state.last;
  busy(true);
  verdict("writing it again…");
  let again = "";
  const into = (piece) => (again += piece.thought ?? piece.text);
  into.quiet = true;
  try {
    const off = { path, body: { ...body, speculative: { off: true } } };
    const plain = await write(off, into, state.running.signal);
    const same = again === text;
    const ratio = plain.speed ? run.speed / plain.speed : 0;
    verdict(
      same
        ? `Identical. ${run.speed.toFixed(0)} tokens/s with speculation, ` +
          `${plain.speed.toFixed(0)} without: ${ratio.toFixed(2)} times.`
        : "The texts differ. That is a bug: please report it.",
      !same,
    );
  } catch (error) {
    verdict(error.name === "AbortError" ? "stopped" : error.message, error.name !== "AbortError");
  } finally {
    busy(false);
    byId("verify").disabled = false;
  }
}

function verdict(text, isBad = false) {
  byId("verdict").textContent = text;
  byId("verdict").classList.toggle("bad", isBad);
}

export function factsOf(run) {
  if (!run?.tokens) return "";
  return `${run.tokens} tokens · ${run.speed.toFixed(1)} tokens/s`;
}

// Keeps the end in sight while it is being written, unless its reader has gone up.
export function follow(item) {
  const stage = item.closest(".stage");
  const below = stage.scrollHeight - stage.scrollTop - stage.clientHeight;
  if (below < 160) stage.scrollTop = stage.scrollHeight;
}
