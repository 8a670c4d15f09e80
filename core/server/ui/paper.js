// Where an answer is written, token by token: tinted by source, fences of code as blocks.

const FENCE = /^\s*```/;
const sources = []; // in the order in which they were first seen: that is their colour

export function tintOf(source) {
  if (!sources.includes(source)) sources.push(source);
  return `var(--s${sources.indexOf(source) % 11})`;
}

export class Paper {
  constructor(element) {
    this.element = element;
    this.inside = element; // a block of code, or the answer itself
    this.line = []; // nodes of the line that is being written
    this.text = "";
  }

  write(text, provenance) {
    this.text += text;
    for (const rejected of provenance?.rejected ?? [])
      this.#add(rejected.replaceAll("\n", "⏎"), null, "rejected");
    const parts = text.split("\n");
    parts.forEach((part, i) => {
      if (part) this.#add(part, provenance?.source);
      if (i < parts.length - 1) this.#endLine();
    });
  }

  #add(text, source, kind) {
    const span = document.createElement("span");
    span.textContent = text;
    if (kind) {
      span.className = kind;
      span.title = "drafted, and not what the model writes";
    } else if (source && source !== "target") {
      span.dataset.source = source;
      span.title = source;
      span.style.setProperty("--tint", tintOf(source));
    }
    this.inside.append(span);
    if (!kind) this.line.push(span);
  }

  #endLine() {
    const written = this.line.map((node) => node.textContent).join("");
    if (FENCE.test(written)) {
      for (const node of this.line) node.remove();
      this.#turn();
    } else {
      this.inside.append("\n");
    }
    this.line = [];
  }

  #turn() {
    if (this.inside !== this.element) {
      this.inside = this.element;
      return;
    }
    this.inside = document.createElement("pre");
    this.element.append(this.inside);
  }

  end() {
    const written = this.line.map((node) => node.textContent).join("");
    if (this.inside !== this.element && FENCE.test(written))
      for (const node of this.line) node.remove();
  }
}
