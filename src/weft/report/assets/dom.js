// Elements, made of plain objects. Text goes in as text and never as markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, properties, children) {
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

// A shape with what the pointer and a screen reader are told of it.
export function titled(element, text) {
  element.append(svg("title", {}, text));
  return element;
}

export function clip(text, most) {
  const letters = [...String(text)];
  return letters.length > most ? letters.slice(0, most - 1).join("") + "…" : letters.join("");
}

// Arrow keys go from one of some elements to the next; one of them is a stop of the tab key.
export function roving(elements, columns, onfocus) {
  let at = Math.max(0, elements.findIndex((one) => one.getAttribute("aria-current") === "true"));
  elements.forEach((one, n) => {
    one.setAttribute("tabindex", n === at ? "0" : "-1");
    one.addEventListener("focus", () => {
      elements[at].setAttribute("tabindex", "-1");
      at = n;
      one.setAttribute("tabindex", "0");
      if (onfocus) onfocus(n);
    });
    one.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
      const goal = event.key === "Home" ? 0 : event.key === "End" ? elements.length - 1 : n + step;
      if (!(goal >= 0 && goal < elements.length)) return;
      event.preventDefault();
      event.stopPropagation();
      elements[goal].focus();
    });
  });
}

// What a click does, a press of Enter or of the space bar does as well.
export function pressable(element, action) {
  element.addEventListener("click", action);
  element.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    event.stopPropagation();
    action(event);
  });
  return element;
}
