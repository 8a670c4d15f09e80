// The list of conversations: searched, opened, exported and deleted.

import * as chat from "./chat.js";
import * as conversations from "./conversations.js";
import { notice } from "./writing.js";

const byId = (id) => document.getElementById(id);

export function draw() {
  const words = byId("search").value.trim();
  const found = conversations.list(words);
  byId("conversations").replaceChildren(...found.map(row));
  byId("none-found").hidden = found.length > 0;
  byId("none-found").textContent = words ? "Nothing found." : "They are kept in this browser alone.";
  byId("export-all").disabled = !found.length;
}

function row(conversation) {
  const title = conversations.titleOf(conversation);
  const item = document.createElement("li");
  const open = button(title, `Open: ${title}`, () => {
    chat.open(conversations.load(conversation.id) ?? conversations.begin());
    chosen();
  });
  open.className = "title";
  open.title = title;
  if (conversation.id === chat.currentId()) open.setAttribute("aria-current", "true");
  const save = button("⤓", `Export: ${title}`, () => exportOne(conversation, title));
  const remove = button("×", `Delete: ${title}`, () => {
    if (!confirm(`Delete "${title}"?`)) return;
    chat.remove(conversation.id);
    byId("search").focus();
  });
  item.append(open, save, remove);
  return item;
}

function button(text, label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.setAttribute("aria-label", label);
  made.title = label;
  made.onclick = act;
  return made;
}

function exportOne(conversation, title) {
  const name = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
  conversations.download(`${name}.md`, conversations.asMarkdown(conversation), "text/markdown");
}

function exportAll() {
  const text = JSON.stringify(conversations.list(byId("search").value), null, 1);
  conversations.download("conversations.json", text, "application/json");
}

async function importFrom(input) {
  const [file] = input.files;
  input.value = "";
  try {
    conversations.importAll(await file.text());
  } catch (error) {
    notice(`${file.name}: ${error.message}`, { isBad: true });
  }
  draw();
}

let chosen = () => {};

// `whenChosen`: called when a conversation was opened from the list.
export function watch(whenChosen) {
  chosen = whenChosen;
  byId("search").addEventListener("input", draw);
  byId("export-all").onclick = exportAll;
  byId("import").onclick = () => byId("import-file").click();
  byId("import-file").onchange = ({ target }) => importFrom(target);
  addEventListener("storage", draw); // other tabs write as well
  draw();
}
