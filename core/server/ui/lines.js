// Elements, and lines of a text that belong together.

export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

// Without what was before each, and where they are in the text.
export class Joined {
  constructor(text, lines) {
    this.lines = lines;
    this.text = lines.map(({ start, end }) => text.slice(start, end)).join("\n");
    let at = 0;
    this.places = lines.map(({ start, end }) => (at += end - start + 1) - (end - start + 1));
  }

  // `paint` shows parts of the text by their places in it.
  paint(parent, start, end, paint) {
    for (let i = this.#lineOf(start); i < this.lines.length && this.places[i] < end; i += 1) {
      const line = this.lines[i];
      const n = line.end - line.start;
      const from = Math.max(start - this.places[i], 0);
      const to = Math.min(end - this.places[i], n);
      if (from < to) paint(parent, line.start + from, line.start + to);
      if (end - this.places[i] > n) parent.append("\n");
    }
  }

  #lineOf(place) {
    let low = 0;
    let high = this.lines.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.places[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
