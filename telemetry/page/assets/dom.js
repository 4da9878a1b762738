// Elements. Text of a state becomes text of the document, never HTML.

const byID = (id) => document.getElementById(id);

function add(parent, node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  for (const child of [children].flat()) {
    if (child !== null && child !== undefined) node.append(child); // a string becomes a text node
  }
  parent?.append(node);
  return node;
}

function el(tag, attributes = {}, children = []) { return add(null, document.createElement(tag), attributes, children); }

function svg(parent, tag, attributes = {}, children = []) {
  return add(parent, document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}

// fill replaces an element's children if they are to show other data than before, so that the
// selection and the place of a screen reader stay where nothing has changed.
const shownData = new Map();
function fill(id, data, make) {
  const text = JSON.stringify(data);
  if (shownData.get(id) === text) return;
  shownData.set(id, text);
  byID(id).replaceChildren(...[make(data)].flat());
}

// table makes a table; on a phone each row becomes a list of names and values. columns are
// [heading, value of a row, kind], and the kind n is a number.
function table(caption, columns, rows) {
  const heads = columns.map(([name, , kind]) => el('th', { scope: 'col', role: 'columnheader', class: kind }, name));
  const body = rows.map((row) => el('tr', { role: 'row' }, columns.map(([name, value, kind]) =>
    el('td', { role: 'cell', class: kind, 'data-label': name }, value(row)))));
  return el('table', { role: 'table', 'aria-label': caption }, [
    el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, heads)), el('tbody', { role: 'rowgroup' }, body)]);
}

// meter is a bar of a share, null for a share that is not known.
function meter(label, text, share, color) {
  const inner = el('div', { class: color });
  const percent = share === null ? 0 : Math.max(0, Math.min(1, share)) * 100;
  inner.style.width = percent + '%';
  return el('div', {
    class: 'bar' + (share === null ? ' unbounded' : share >= 0.97 ? ' full' : ''), role: 'meter', 'aria-label': label,
    'aria-valuemin': 0, 'aria-valuemax': 100, 'aria-valuenow': percent.toFixed(1), 'aria-valuetext': text,
  }, percent > 0 ? inner : []);
}
