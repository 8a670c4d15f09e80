// One message as it is shown: its text, what is attached, and what can be done with it.

import { Answer } from "./answer.js";
import { fileView, picture } from "./attachments.js";
import { copyButton } from "./clipboard.js";
import { textOf } from "./conversations.js";
import { follow } from "./writing.js";

export class MessageView {
  constructor(message) {
    this.message = message;
    this.item = document.createElement("li");
    this.item.className = `message ${message.role}`;
    this.item.setAttribute("aria-label", message.role === "user" ? "You" : "Answer");
    this.body = document.createElement("div");
    this.body.className = "answer";
    this.bar = document.createElement("div");
    this.bar.className = "facts";
    this.item.append(this.body, this.bar);
    this.answer = null;
    this.thoughts = null;
    if (message.role === "user") this.#given();
    else this.#kept();
  }

  #given() {
    const { content, files = [] } = this.message;
    const images = typeof content === "string" ? [] : content.filter(({ type }) => type === "image_url");
    const text = document.createElement("div");
    text.className = "given";
    text.textContent = textOf(this.message);
    this.body.append(...images.map((part) => picture(part.image_url.url)), ...files.map(fileView), text);
  }

  #kept() {
    this.answer = new Answer(this.body);
    const { content, thought } = this.message;
    if (thought) this.write({ thought });
    if (content) this.write({ text: content });
    this.end();
  }

  // A piece of what the model writes.
  write({ text, thought, provenance }) {
    if (thought) {
      this.thoughts ??= new Answer(this.#thoughtsBody());
      this.thoughts.write(thought, provenance);
    } else {
      this.answer.write(text, provenance);
    }
    if (this.item.isConnected) follow(this.item);
  }

  end() {
    this.thoughts?.end();
    this.answer.end();
  }

  #thoughtsBody() {
    const details = document.createElement("details");
    details.className = "thoughts";
    details.open = !this.message.content;
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    const body = document.createElement("div");
    body.className = "answer";
    details.append(summary, body);
    this.item.insertBefore(details, this.body);
    return body;
  }

  // `versions`: of this message; `actions`: what its buttons do.
  dress(versions, actions) {
    const { message } = this;
    const parts = message.facts ? [message.facts] : [];
    if (versions.length > 1) parts.push(this.#switch(versions, actions.show));
    const text = textOf(message);
    if (text) parts.push(copyButton(() => textOf(message)));
    const edit = button("Edit", () => this.edit(actions.edit));
    edit.classList.add("edit");
    parts.push(edit);
    const again = message.role === "user" ? "Answer" : "Regenerate";
    if (actions.again) parts.push(button(again, () => actions.again(message)));
    this.bar.replaceChildren(...parts);
  }

  #switch(versions, show) {
    const at = versions.indexOf(this.message);
    const group = document.createElement("span");
    group.className = "versions";
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", "Versions");
    const step = (sign, label, by) => {
      const other = versions[at + by];
      const made = button(sign, () => show(other, label));
      made.setAttribute("aria-label", label);
      made.disabled = !other;
      return made;
    };
    group.append(
      step("‹", "Earlier version", -1), ` ${at + 1}/${versions.length} `, step("›", "Later version", 1),
    );
    return group;
  }

  // The text becomes a field; `save` gets the message and the new text.
  edit(save) {
    if (this.item.querySelector("form")) return;
    const form = document.createElement("form");
    const field = document.createElement("textarea");
    field.value = textOf(this.message);
    field.rows = Math.min(field.value.split("\n").length + 1, 16);
    field.setAttribute("aria-label", "New text of the message");
    const isUser = this.message.role === "user";
    const row = document.createElement("div");
    row.className = "facts";
    const ok = button(isUser ? "Send" : "Save", null);
    ok.type = "submit";
    row.append(ok, button("Cancel", () => this.#endEdit(form)));
    form.className = "editor";
    form.append(field, row);
    form.onsubmit = (event) => {
      event.preventDefault();
      const text = field.value.trim();
      this.#endEdit(form);
      if (text && text !== textOf(this.message)) save(this.message, text);
    };
    form.onkeydown = (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") this.#endEdit(form);
      else if (event.key === "Enter" && !event.shiftKey && isUser && event.target === field) {
        event.preventDefault();
        form.requestSubmit();
      } else return;
      event.stopPropagation();
    };
    this.body.hidden = this.bar.hidden = true;
    this.item.insertBefore(form, this.bar);
    field.focus();
  }

  #endEdit(form) {
    form.remove();
    this.body.hidden = this.bar.hidden = false;
    this.bar.querySelector(".edit")?.focus();
  }
}

function button(label, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.onclick = act;
  return made;
}
