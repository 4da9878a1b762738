// From a state, which is JSON of package telemetry, to the rows and points that are shown.

const second = 1e9; // nanoseconds
const silentSeconds = /*silent*/; // after which a process's report is called old

// sum adds the series of a name over all models: without labels, or for a label's value.
function sum(models, name, label, value) {
  const key = label ? `${name}{${label}="${value}"}` : name;
  return models.reduce((n, m) => n + (m.totals?.[key] ?? 0), 0);
}

// byLabel adds the series of a name by the values of their only label.
function byLabel(models, name, label) {
  const sums = new Map(), begin = `${name}{${label}="`;
  for (const m of models) {
    for (const [key, n] of Object.entries(m.totals ?? {})) {
      if (!key.startsWith(begin) || !key.endsWith('"}')) continue;
      const value = key.slice(begin.length, -2);
      sums.set(value, (sums.get(value) ?? 0) + n);
    }
  }
  return sums;
}

function numbersOf(models) {
  const tokens = byLabel(models, 'ollama_kv_prompt_tokens_total', 'source');
  let all = 0;
  for (const n of tokens.values()) all += n;
  const of = (place) => tokens.get(place) ?? 0;
  return {
    prompts: sum(models, 'ollama_kv_prompts_total'),
    restores: sum(models, 'ollama_kv_restores_total'),
    saved: sum(models, 'ollama_kv_saved_seconds_total'),
    tokens: all, kept: of('slot'), computed: of('computed'),
    restored: of('ram') + of('local') + of('remote') + of('shifted'),
    reused: all - of('computed'), share: all > 0 ? (all - of('computed')) / all : null,
  };
}

const shortDigits = 12;
function modelName(model) {
  if (model?.name) return plain(model.name);
  return model?.weights ? 'weights ' + plain(model.weights.slice(0, shortDigits)) : 'other models';
}

function processKey(p) { return [p?.engine, p?.boot, p?.pid, p?.start].join('/'); }

function promptRows(state) {
  const names = new Map();
  for (const p of state.processes ?? []) names.set(p.model?.weights, modelName(p.model));
  for (const m of state.models ?? []) names.set(m.model?.weights, modelName(m.model));
  return (state.prompts ?? []).map((p) => ({
    key: processKey(p.process) + '/' + p.seq,
    lane: [p.process?.engine, p.weights, p.namespace, p.slot].join('/'), // of all runners of a model, one after the other
    at: time(p.at), model: names.get(p.weights) ?? modelName({ weights: p.weights }), slotID: p.slot, tokens: p.tokens, isPrivate: !!p.private,
    parts: { slot: p.from_slot, ram: p.from_ram, local: p.from_local, remote: p.from_remote, shifted: p.shifted, computed: p.computed },
    restored: p.from_ram + p.from_local + p.from_remote + p.shifted,
    restore: p.restore_ns / second, took: p.took_ns / second, saved: p.saved_ns / second, miss: p.miss,
  }));
}

// mainPlace is the place that most of a prompt's restored tokens came from.
function mainPlace(row) {
  return ['ram', 'local', 'remote', 'shifted'].reduce((best, place) => row.parts[place] > row.parts[best] ? place : best);
}

function missRows(models) {
  const tokens = byLabel(models, 'ollama_kv_missed_tokens_total', 'cause');
  return [...byLabel(models, 'ollama_kv_misses_total', 'cause')]
    .map(([cause, prompts]) => ({ cause, prompts, tokens: tokens.get(cause) ?? 0 }))
    .filter((row) => row.prompts > 0)
    .sort((a, b) => b.tokens - a.tokens || b.prompts - a.prompts);
}

function missText(miss, now) {
  if (!miss) return '';
  let text = causeName(miss.cause);
  if (miss.from) text += ' from ' + plain(miss.from);
  if (time(miss.when)) text += ' ' + ago(now - time(miss.when));
  text += `, at token ${count(miss.at)}`;
  if (miss.detail) text += ': ' + plain(miss.detail);
  return text;
}

function slotRows(state) {
  const rows = [];
  for (const p of state.processes ?? []) {
    for (const s of p.slots ?? []) rows.push({ ...s, model: modelName(p.model), pid: p.process?.pid, engine: p.process?.engine });
  }
  return rows;
}

function memoryRows(state) {
  const rows = [];
  for (const p of state.processes ?? []) {
    const of = { model: modelName(p.model), pid: p.process?.pid };
    for (const m of p.memory ?? []) rows.push({ ...m, ...of });
    for (const e of p.elastic ?? []) rows.push({ name: `elastic memory ${e.segment}`, bytes: e.used_bytes, limit_bytes: e.limit_bytes, ...of });
  }
  return rows;
}

// unstoredText says why conversations of a process are not stored.
function unstoredText(p, now) {
  const u = p.unstored, [means, remedy] = Object.hasOwn(obstacles, u.cause) ? obstacles[u.cause] : ['a newer program gave this cause', 'Update kvtier to the version of the server.'];
  const detail = u.detail ? ' (' + plain(u.detail) + ')' : '';
  return `Conversations of ${modelName(p.model)} are not stored: ${means}${detail}, first seen ${ago(now - time(u.since))}. ${remedy}`;
}

// hints are sentences about the state that ask for an action.
function hintsOf(state, now) {
  const hints = [...(state.hints ?? []), ...(state.processes ?? []).filter((p) => p.unstored).map((p) => unstoredText(p, now))];
  for (const t of state.tiers ?? []) {
    if (t.down) hints.push(`The ${t.name} tier is down: writing fails, or it did not answer. kvtier doctor looks for the cause.`);
    if (t.quarantined) hints.push(`${plural(t.quarantined, 'damaged file')} of the ${t.name} tier ${t.quarantined === 1 ? 'was' : 'were'} set aside. kvtier check looks for more.`);
    if (t.write_cap_bytes && t.written_today_bytes >= 0.9 * t.write_cap_bytes) {
      hints.push(`The ${t.name} tier has written ${bytes(t.written_today_bytes)} of ${bytes(t.write_cap_bytes)} allowed today; over that, pages are not stored.`);
    }
  }
  for (const p of state.processes ?? []) {
    if (p.unpaged) hints.push(`${modelName(p.model)} is not paged: ${plain(p.unpaged.reason)}. ${plain(p.unpaged.remedy)}.`);
    for (const b of p.busters ?? []) {
      hints.push(`${b.end - b.begin > 1 ? `Tokens ${count(b.begin)} to ${count(b.end - 1)}` : `Token ${count(b.begin)}`} changed in ${plural(b.prompts, 'prompt')} in a row of ${modelName(p.model)}, so ${plural(b.lost, 'token')} behind them ${b.lost === 1 ? 'was' : 'were'} computed again. kvtier why shows the text.`);
    }
    const silent = now - time(p.at);
    if (time(p.at) && silent > silentSeconds) hints.push(`Process ${p.process?.pid} (${modelName(p.model)}) last reported ${ago(silent)}.`);
  }
  return hints.map(plain2);
}

// plain2 is plain for a sentence, whose parts have been shortened already.
function plain2(text) { return text.replace(/[\p{Cc}\p{Cf}]/gu, '\uFFFD'); }

function isEmpty(state) { return !(state.hints ?? []).length && !(state.models ?? []).length && !(state.processes ?? []).length && !(state.prompts ?? []).length; }
