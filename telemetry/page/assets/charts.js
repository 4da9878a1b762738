// The two pictures. Each is drawn for the width that it has.

const stack = ['slot', 'remote', 'local', 'ram', 'shifted', 'computed']; // from the bottom
const lanesMax = 8; // of slots below the bars

function niceTop(n) { // the least of 1, 2, 5 × 10^k that is not below n
  const power = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 2, 5, 10].map((f) => f * power).find((top) => top >= n);
}

function shortCount(n) { return n >= 1e6 ? n / 1e6 + 'M' : n >= 1e3 ? n / 1e3 + 'k' : String(n); }

// drawTimeline draws the latest prompts that fit as stacked bars, and below them which slot
// each was in. It returns the rows that are drawn.
function drawTimeline(box, rows, chosen, now) {
  const width = box.clientWidth, left = 52, step = width < 500 ? 11 : 13, bar = step - 3, high = 150, top = 14;
  rows = rows.slice(-Math.max(1, Math.floor((width - left - 4) / step)));
  const begin = width - 2 - rows.length * step; // the latest is at the right
  const lanes = [...new Set(rows.map((r) => r.lane))].slice(-lanesMax);
  const bottom = top + high, height = bottom + 12 + 12 * lanes.length + 16;
  const picture = svg(null, 'svg', { width, height, 'aria-hidden': 'true' });
  const most = niceTop(Math.max(...rows.map((r) => r.tokens)));
  for (const f of [0, 0.5, 1]) {
    const y = bottom - f * high + 0.5;
    svg(picture, 'line', { class: 'rule', x1: left, x2: width, y1: y, y2: y });
    svg(picture, 'text', { x: left - 6, y: y + 4, 'text-anchor': 'end' }, shortCount(f * most));
  }
  lanes.forEach((lane, i) => {
    const row = rows.find((r) => r.lane === lane);
    svg(picture, 'text', { x: left - 6, y: bottom + 20 + 12 * i, 'text-anchor': 'end' }, 'slot ' + row.slotID);
  });
  rows.forEach((row, i) => {
    const x = begin + i * step;
    let y = bottom;
    for (const place of stack) {
      const h = row.parts[place] / most * high;
      if (h <= 0) continue;
      y -= h;
      svg(picture, 'rect', { class: 'f-' + place, x, y, width: bar, height: Math.max(h, 0.7) });
    }
    if (row.miss && row.miss.cause !== 'never_seen') svg(picture, 'circle', { class: 'mark', cx: x + bar / 2, cy: Math.max(y - 6, 4), r: 2.2 });
    const lane = lanes.indexOf(row.lane);
    if (lane >= 0) svg(picture, 'rect', { class: row.restored > 0 ? 'f-' + mainPlace(row) : row.parts.computed > row.parts.slot ? 'f-computed' : 'f-slot', x: x + bar / 2 - 3, y: bottom + 13 + 12 * lane, width: 6, height: 6, rx: 3 });
    if (row.key === chosen) svg(picture, 'rect', { class: 'pick', x: x - 1.5, y: 2, width: bar + 3, height: height - 20, rx: 3 });
  });
  svg(picture, 'text', { x: Math.min(begin, width - 200), y: height - 2 }, ago(now - rows[0].at));
  svg(picture, 'text', { x: width - 2, y: height - 2, 'text-anchor': 'end' }, ago(now - rows.at(-1).at));
  box.replaceChildren(picture);
  return { rows, at: (x) => rows[Math.max(0, Math.min(rows.length - 1, Math.floor((x - begin + 1.5) / step)))] };
}

// scatterPoints are restores, by the time that they took, and prompts that were computed as a
// whole, by theirs.
function scatterPoints(rows) {
  return rows.filter((r) => r.tokens > 0).flatMap((row) => {
    if (row.restored > 0 && row.restore > 0) return [{ row, x: row.tokens, y: row.restore, place: mainPlace(row) }];
    if (row.restored === 0 && row.parts.slot === 0 && row.took > 0) return [{ row, x: row.tokens, y: row.took, place: 'computed' }];
    return [];
  });
}

function decades(values) {
  const low = Math.floor(Math.log10(Math.min(...values))), high = Math.ceil(Math.log10(Math.max(...values)) + 1e-9);
  return [low, Math.max(high, low + 1)];
}

function pointShape(parent, point, x, y) {
  if (point.place !== 'computed') return svg(parent, 'circle', { class: 'f-' + point.place, cx: x, cy: y, r: 4, 'fill-opacity': 0.8 });
  return svg(parent, 'path', { class: 'f-computed', d: `M${x} ${y - 4.5}l4.5 8h-9z`, 'fill-opacity': 0.8 });
}

// secondsLabel is 10^e seconds in a unit that people read.
function secondsLabel(e) {
  const [, unit] = [[0, 's'], [-4, 'ms'], [-7, 'µs'], [-Infinity, 'ns']].find(([least]) => e >= least);
  const shift = { s: 0, ms: 3, µs: 6, ns: 9 }[unit];
  return Number((10 ** (e + shift)).toPrecision(1)) + ' ' + unit;
}

function drawScatter(box, points, chosen) {
  const width = box.clientWidth, height = 240, left = 52, right = 14, top = 10, bottom = height - 34;
  const [x0, x1] = decades(points.map((p) => p.x)), [y0, y1] = decades(points.map((p) => p.y));
  const xOf = (n) => left + (Math.log10(n) - x0) / (x1 - x0) * (width - left - right);
  const yOf = (n) => bottom - (Math.log10(n) - y0) / (y1 - y0) * (bottom - top);
  const picture = svg(null, 'svg', { width, height, 'aria-hidden': 'true' });
  for (let e = x0; e <= x1; e++) {
    svg(picture, 'line', { class: 'rule', x1: xOf(10 ** e), x2: xOf(10 ** e), y1: top, y2: bottom });
    svg(picture, 'text', { x: xOf(10 ** e), y: bottom + 15, 'text-anchor': e === x1 ? 'end' : 'middle' }, shortCount(10 ** e));
  }
  for (let e = y0; e <= y1; e++) {
    svg(picture, 'line', { class: 'rule', x1: left, x2: width - right, y1: yOf(10 ** e), y2: yOf(10 ** e) });
    svg(picture, 'text', { x: left - 6, y: yOf(10 ** e) + 4, 'text-anchor': 'end' }, secondsLabel(e));
  }
  svg(picture, 'text', { x: (left + width - right) / 2, y: height - 4, 'text-anchor': 'middle' }, 'tokens of the prompt');
  for (const point of points) {
    pointShape(picture, point, xOf(point.x), yOf(point.y));
    if (point.row.key === chosen) svg(picture, 'circle', { class: 'pick', cx: xOf(point.x), cy: yOf(point.y), r: 7 });
  }
  box.replaceChildren(picture);
  const far = (p, x, y) => (xOf(p.x) - x) ** 2 + (yOf(p.y) - y) ** 2;
  return { at: (x, y) => points.reduce((best, p) => far(p, x, y) < far(best, x, y) ? p : best).row };
}

function legendItem(place, text, asPoint) {
  const icon = svg(null, 'svg', { width: 12, height: 12 });
  if (asPoint) pointShape(icon, { place }, 6, 6); else svg(icon, 'rect', { class: 'f-' + place, width: 12, height: 12, rx: 2 });
  return el('li', {}, [icon, text]);
}
