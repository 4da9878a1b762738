// The page asks for the state every two seconds while it is looked at, and shows it.

const pollSeconds = 2, answerSeconds = 5, oldSeconds = 15;
const page = { state: null, rows: [], chosen: null, follow: true, now: 0, at: 0, timeline: null, scatter: null };

function show(state, now) {
  Object.assign(page, { state, now, at: performance.now() });
  const empty = isEmpty(state), waiting = !empty && !(state.prompts ?? []).length && numbersOf(state.models ?? []).prompts === 0;
  byID('root').textContent = plain(state.root);
  byID('content').hidden = empty;
  byID('empty').hidden = !empty && !waiting;
  showStatus('');
  if (empty || waiting) showSteps(empty);
  if (empty) return;
  const models = state.models ?? [], since = time(state.since);
  fill('tiles', { ...numbersOf(models), since: since ? 'since ' + new Date(1000 * since).toLocaleDateString('en-GB', { day: 'numeric', month: 'short', year: 'numeric' }) : 'since the start' }, tiles);
  const hints = hintsOf(state, now);
  byID('hints').hidden = !hints.length;
  fill('hints', hints, (list) => list.map((text) => el('li', {}, text)));
  fill('tiers', state.tiers ?? [], (list) => list.length ? list.map(tierRow) : el('p', { class: 'quiet' }, 'No process that runs has told of its tiers.'));
  fill('misses', missRows(models), misses);
  const minute = Math.floor(now / 10); // ages are written again every ten seconds
  byID('models-section').hidden = !models.length;
  fill('models', [models, minute], () => modelTable(models, now));
  const slots = slotRows(state), memory = memoryRows(state);
  fill('slots', [slots, minute], () => slots.length ? slotTable(slots, now) : el('p', { class: 'quiet' }, 'No model is loaded.'));
  byID('memory-section').hidden = !memory.length;
  fill('memory', memory, (list) => list.map(memoryRow));
  page.rows = promptRows(state);
  fill('prompts', [page.rows, minute], () => page.rows.length ? promptTable(page.rows, now) : el('p', { class: 'quiet' }, 'None yet.'));
  drawPictures();
}

function showSteps(empty) {
  const steps = empty ? [
    ['Put kvtier before the llama-server of your Ollama, v0.30 or later:', 'sudo kvtier ollama install'],
    ['For a patched release, or a server that you start yourself, set this variable where the server runs, and start it again:', 'OLLAMA_KV_TIERING=1'],
    ['Ask a model something. Numbers appear here with the first prompt.'],
    ['If nothing appears, this names the cause and the cure:', 'sudo kvtier doctor'],
  ] : [['Ask a model something; numbers appear here with the first prompt.'], ['Ask the same again after ollama stop MODEL: the prompt is then restored.']];
  fill('empty-title', empty, () => empty ? 'No server has reported yet' : 'A model is loaded, and has not evaluated a prompt yet');
  fill('empty-steps', steps, (list) => list.map(([text, code]) => el('li', {}, [text, code ? el('pre', {}, el('code', {}, code)) : null])));
}

// showStatus says how old the numbers are. lost is the reason why no answer came.
function showStatus(lost) {
  const { state, now } = page, old = state ? now - time(state.at) + (performance.now() - page.at) / 1000 : 0;
  const stale = state && old > oldSeconds;
  document.body.className = lost ? 'lost' : stale ? 'stale' : state ? 'live' : '';
  let text = 'Live', notice = '';
  if (lost) {
    text = 'Not connected';
    notice = `${lost} ${state ? `The numbers are of ${clock(time(state.at))}.` : ''} The page goes on trying.`;
  } else if (stale) {
    text = 'Numbers of ' + clock(time(state.at)) + ', ' + ago(old);
    notice = 'The server of this page has not been heard of since. Is its process stopped?';
  }
  if (byID('status-text').textContent !== text) byID('status-text').textContent = text;
  byID('notice').hidden = !notice;
  if (byID('notice').textContent !== notice) byID('notice').textContent = notice;
}

function drawPictures() {
  const { rows, now } = page, points = scatterPoints(rows);
  byID('chosen').hidden = !rows.length;
  if (!rows.length) {
    byID('timeline').replaceChildren(el('p', { class: 'quiet' }, 'No prompt yet.'));
    byID('scatter').replaceChildren(el('p', { class: 'quiet' }, 'No prompt yet.'));
    return;
  }
  if (page.follow || !rows.some((r) => r.key === page.chosen)) page.chosen = rows.at(-1).key;
  page.timeline = drawTimeline(byID('timeline'), rows, page.chosen, now);
  const drawn = page.timeline.rows, at = drawn.findIndex((r) => r.key === page.chosen);
  const sentence = promptSentence(drawn[at] ?? rows.find((r) => r.key === page.chosen), now);
  if (byID('chosen').textContent !== sentence) byID('chosen').textContent = sentence;
  const slider = byID('timeline');
  for (const [name, value] of [['valuemin', 1], ['valuemax', drawn.length], ['valuenow', Math.max(at, 0) + 1], ['valuetext', sentence]]) slider.setAttribute('aria-' + name, value);
  if (points.length) page.scatter = drawScatter(byID('scatter'), points, page.chosen);
  else byID('scatter').replaceChildren(el('p', { class: 'quiet' }, 'No restore yet.'));
  const restores = points.filter((p) => p.place !== 'computed');
  byID('scatter').setAttribute('aria-label', restores.length
    ? `${plural(restores.length, 'restore')} of prompts of up to ${count(Math.max(...restores.map((p) => p.x)))} tokens took up to ${span(Math.max(...restores.map((p) => p.y)))}. The table of prompts has all values.` : 'No restore yet.');
}

function choose(row) {
  if (!row || row.key === page.chosen) return;
  page.chosen = row.key;
  page.follow = row.key === page.rows.at(-1)?.key;
  drawPictures();
}

function listen() {
  const timeline = byID('timeline'), scatter = byID('scatter');
  const place = (box, event) => { const r = box.getBoundingClientRect(); return [event.clientX - r.left, event.clientY - r.top]; };
  for (const kind of ['pointermove', 'pointerdown']) {
    timeline.addEventListener(kind, (e) => choose(page.timeline?.at(...place(timeline, e))));
    scatter.addEventListener(kind, (e) => choose(page.scatter?.at(...place(scatter, e))));
  }
  timeline.addEventListener('keydown', (e) => {
    const rows = page.timeline?.rows ?? [], at = rows.findIndex((r) => r.key === page.chosen), last = rows.length - 1;
    const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last, PageDown: at - 10, PageUp: at + 10 }[e.key];
    if (to === undefined || last < 0) return;
    e.preventDefault();
    choose(rows[Math.max(0, Math.min(last, to))]);
  });
  new ResizeObserver(() => page.state && page.rows.length && drawPictures()).observe(timeline);
  byID('legend').replaceChildren(...stack.map((p) => legendItem(p, places[p], false)), el('li', {}, '• a miss, except of new text'));
  byID('scatter-legend').replaceChildren(...['ram', 'local', 'remote', 'shifted'].map((p) => legendItem(p, (p === 'shifted' ? '' : 'restored ') + places[p], true)), legendItem('computed', 'computed as a whole', true));
}

async function poll() {
  let answer, body;
  try {
    answer = await fetch('state.json', { cache: 'no-store', signal: AbortSignal.timeout(1000 * answerSeconds) });
    body = await answer.json();
  } catch {
    return showStatus('No answer from the server of this page.');
  }
  if (!answer.ok) return showStatus(plain(body?.error ?? `The server answered with ${answer.status}.`));
  try {
    show(body, time(answer.headers.get('Date')) || Date.now() / 1000);
  } catch (error) {
    console.error(error);
    showStatus('The numbers cannot be shown: ' + plain(error.message) + '.');
  }
}

async function main() {
  listen();
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((done) => setTimeout(done, 1000 * pollSeconds));
  }
}

main();
