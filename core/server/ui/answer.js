// What a model writes in a chat: markdown while it comes, each token tinted by its drafter.

import { Markdown } from "./markdown.js";
import { sourceSpan, rejectedSpan } from "./paper.js";

export class Answer {
  constructor(element) {
    this.element = element;
    element.classList.add("markdown");
    this.text = "";
    this.tokens = []; // {start, end, source, rejected}, in order; none for text that was kept
    this.shown = []; // {start, end, node} of the blocks that stand there
    this.frame = null;
  }

  write(text, provenance) {
    const start = this.text.length;
    this.text += text;
    if (provenance)
      this.tokens.push({ start, end: this.text.length, ...provenance });
    this.frame ??= requestAnimationFrame(() => this.#draw());
  }

  end() {
    if (this.frame !== null) cancelAnimationFrame(this.frame);
    this.#draw();
  }

  // Blocks whose text has not changed stay as they are, with what is selected in them.
  #draw() {
    this.frame = null;
    const blocks = new Markdown(this.text, this.#paint).blocks();
    let n = 0;
    const isSame = (a, b) => a && b && a.start === b.start && a.end === b.end;
    while (n < blocks.length - 1 && isSame(blocks[n], this.shown[n])) n += 1;
    for (const { node } of this.shown.splice(n)) node.remove();
    for (const { start, end, build } of blocks.slice(n)) {
      const node = build();
      this.element.append(node);
      this.shown.push({ start, end, node });
    }
  }

  #paint = (parent, start, end) => {
    let at = start;
    for (let i = this.#first(start); i < this.tokens.length && at < end; i += 1) {
      const token = this.tokens[i];
      if (token.start >= end) break;
      if (token.start >= start)
        parent.append(...(token.rejected ?? []).map(rejectedSpan));
      const to = Math.min(token.end, end);
      if (to > at) parent.append(sourceSpan(this.text.slice(at, to), token.source));
      at = Math.max(at, to);
    }
    if (at < end) parent.append(this.text.slice(at, end));
  };

  // The first token that ends behind this place.
  #first(place) {
    let low = 0;
    let high = this.tokens.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tokens[middle].end <= place) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
