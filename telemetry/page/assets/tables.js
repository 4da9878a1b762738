// The parts of the page that are text, bars and tables.

function tile(name, big, more) {
  return el('div', { class: 'tile' }, [el('dt', {}, name), el('dd', { class: 'big' }, big), el('dd', { class: 'more' }, more)]);
}

function tiles(n) {
  return [
    tile('Tokens reused', n.share === null ? '–' : percent(n.share), `${count(n.reused)} of ${plural(n.tokens, 'token')} asked`),
    tile('Time saved (estimate)', span(n.saved), n.since),
    tile('Tokens restored', count(n.restored), `in ${plural(n.restores, 'restore')} of ${plural(n.prompts, 'prompt')}`),
    tile('Tokens computed', count(n.computed), `${plural(n.kept, 'token')} were still in a slot`),
  ];
}

const tierColors = { ram: 'c-ram', local: '', remote: 'c-remote' };

function tierRow(t) {
  const used = t.booked_bytes || t.bytes, share = t.budget_bytes > 0 ? used / t.budget_bytes : null;
  const text = share === null ? bytes(used) + ', budget: all but 5 % of the disk' : `${bytes(used)} of ${bytes(t.budget_bytes)}`;
  const more = [`${plural(t.pages, 'page')}, ${plural(t.tails, 'tail')}`];
  if (t.name !== 'ram') more.push('written today: ' + bytes(t.written_today_bytes) + (t.write_cap_bytes ? ' of ' + bytes(t.write_cap_bytes) : ''));
  if (t.quarantined) more.push(plural(t.quarantined, 'file') + ' set aside');
  if (t.root) more.push(plain(t.root));
  return el('div', { class: 'row' }, [
    el('div', { class: 'line' }, [
      el('span', { class: 'name' }, [plain(t.name), t.down ? el('span', { class: 'badge bad' }, 'down') : null]),
      el('span', { class: 'value' }, text + (share === null ? '' : ` (${percent(share)})`)),
    ]),
    meter(plain(t.name) + ' tier', text, share, tierColors[t.name] ?? ''),
    el('p', { class: 'more' }, more.join(' · ')),
  ]);
}

function misses(rows) {
  if (!rows.length) return el('p', { class: 'quiet' }, 'No prompt computed more than it had to.');
  const most = Math.max(1, ...rows.map((r) => r.tokens));
  return rows.map((r) => {
    const text = `${plural(r.prompts, 'prompt')}, ${plural(r.tokens, 'token')} computed`;
    return el('div', { class: 'row' }, [
      el('div', { class: 'line' }, [el('span', { class: 'name' }, causeName(r.cause)), el('span', { class: 'value' }, text)]),
      meter(causeName(r.cause), text, 0.96 * r.tokens / most, 'c-computed'),
      el('p', { class: 'more' }, causeMeaning(r.cause)),
    ]);
  });
}

// promptSentence tells of one prompt, for the line below the timeline and for screen readers.
function promptSentence(row, now) {
  const parts = Object.entries(row.parts).filter(([, n]) => n > 0).map(([place, n]) => `${count(n)} ${places[place]}`);
  let text = `${clock(row.at)}, ${row.model}, slot ${row.slotID}: ${plural(row.tokens, 'token')}, ${parts.join(', ')}.`;
  if (row.restored > 0) text += ` Restored in ${span(row.restore)}; saved ${span(row.saved)} (estimate).`;
  if (row.took > 0) text += ` The prompt took ${span(row.took)}.`;
  if (row.isPrivate) text += ' Not stored, by request.';
  return row.miss ? text + ` Miss: ${missText(row.miss, now)}. ${causeMeaning(row.miss.cause)}` : text;
}

function promptTable(rows, now) {
  const reused = (r) => Object.entries(r.parts).filter(([place, n]) => n > 0 && place !== 'computed').map(([place, n]) => `${count(n)} ${places[place]}`).join(', ') || 'none';
  return table('Latest prompts, the latest first', [
    ['Time', (r) => clock(r.at), 't'], ['Model', (r) => r.model], ['Slot', (r) => String(r.slotID), 'n'], ['Tokens', (r) => count(r.tokens), 'n'],
    ['Reused', reused], ['Computed', (r) => count(r.parts.computed), 'n'], ['Restore', (r) => r.restored > 0 ? span(r.restore) : '–', 'n'],
    ['Saved (estimate)', (r) => r.restored > 0 ? span(r.saved) : '–', 'n'], ['Miss', (r) => missText(r.miss, now) || '–'],
  ], rows.toReversed());
}

function modelTable(models, now) {
  const rows = models.map((m) => ({ m, n: numbersOf([m]) }));
  return table('Models', [
    ['Model', (r) => modelName(r.m.model)], ['Engine', (r) => plain(r.m.engine)], ['Namespace', (r) => plain(r.m.model?.namespace) || '–'],
    ['Prompts', (r) => count(r.n.prompts), 'n'], ['Reused', (r) => r.n.share === null ? '–' : percent(r.n.share), 'n'],
    ['Restored', (r) => count(r.n.restored), 'n'], ['Computed', (r) => count(r.n.computed), 'n'],
    ['Saved (estimate)', (r) => span(r.n.saved), 'n'], ['Last used', (r) => time(r.m.last_used) ? ago(now - time(r.m.last_used)) : 'never'],
  ], rows);
}

function slotTable(rows, now) {
  const pages = (r, n) => r.engine === 'llama-server' ? '–' : count(n); // its daemon does not know them
  const state = (r) => [r.busy ? 'busy' : 'idle', r.lossy ? 'lossy' : r.shifted ? 'shifted' : ''].filter(Boolean).join(', ');
  return table('Slots', [
    ['Slot', (r) => String(r.id), 'n'], ['Model', (r) => r.model], ['State', state], ['Tokens', (r) => count(r.tokens), 'n'],
    ['Hot', (r) => count(r.hot), 'n'], ['Warm', (r) => pages(r, r.warm), 'n'], ['Cold', (r) => pages(r, r.cold), 'n'], ['Remote', (r) => pages(r, r.remote), 'n'],
    ['Last restore', (r) => time(r.last_restore) ? `${count(r.restored)} tokens, ${ago(now - time(r.last_restore))}` : 'never'],
    ['Saved (estimate)', (r) => span(r.saved_ns / second), 'n'],
  ], rows);
}

function memoryRow(m) {
  const share = m.limit_bytes > 0 ? m.bytes / m.limit_bytes : null;
  const text = share === null ? bytes(m.bytes) : `${bytes(m.bytes)} of ${bytes(m.limit_bytes)}`;
  return el('div', { class: 'row' }, [
    el('div', { class: 'line' }, [
      el('span', { class: 'name' }, [plain(m.name), el('span', { class: 'quiet' }, `  ${m.model}, process ${m.pid}`)]), el('span', { class: 'value' }, text)]),
    share === null ? null : meter(plain(m.name), text, share, 'c-ram'),
  ]);
}
