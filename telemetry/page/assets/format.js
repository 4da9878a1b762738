// Numbers as kvtier and Ollama print them.

function fixed1(value) { // as %.1f of Go, which rounds a half to the even digit
  if (Math.abs(value * 4 % 2) !== 1) return value.toFixed(1);
  const tenths = Math.floor(value * 10);
  return ((tenths % 2 ? tenths + 1 : tenths) / 10).toFixed(1);
}

function bytes(n) {
  for (const [size, unit] of [[1e12, 'TB'], [1e9, 'GB'], [1e6, 'MB'], [1e3, 'KB']]) {
    if (n < size) continue;
    const value = n / size;
    return (value >= 10 || Number.isInteger(value) ? Math.trunc(value) : fixed1(value)) + ' ' + unit;
  }
  return Math.trunc(n) + ' B';
}

function count(n) { return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ','); }

function plural(n, noun) { return Math.round(n) === 1 ? '1 ' + noun : count(n) + ' ' + noun + 's'; }

function percent(share) { return share > 0 && share < 0.001 ? '<0.1 %' : fixed1(100 * share) + ' %'; }

// span is a length of time, of seconds.
function span(s) {
  if (s < 0.001) return s > 0 ? '<1 ms' : '0 s';
  if (s < 0.9995) return Math.round(1000 * s) + ' ms';
  if (s < 9.95) return s.toFixed(1) + ' s';
  if (s < 59.5) return Math.round(s) + ' s';
  s = Math.round(s);
  if (s < 3600) return Math.floor(s / 60) + ' min' + (s % 60 ? ' ' + s % 60 + ' s' : '');
  const minutes = Math.floor(s / 60);
  if (minutes < 48 * 60) return Math.floor(minutes / 60) + ' h' + (minutes % 60 ? ' ' + minutes % 60 + ' min' : '');
  const hours = Math.floor(minutes / 60);
  return count(Math.floor(hours / 24)) + ' d' + (hours % 24 ? ' ' + hours % 24 + ' h' : '');
}

// ago is the time that has passed, in the words of "ollama list".
function ago(seconds) {
  const s = Math.trunc(Math.abs(seconds)), m = Math.trunc(s / 60), h = Math.round(Math.abs(seconds) / 3600);
  let text = Math.trunc(h / 24 / 365) + ' years';
  if (s < 1) text = 'less than a second';
  else if (s < 60) text = plural(s, 'second');
  else if (m < 60) text = m === 1 ? 'about a minute' : m + ' minutes';
  else if (h === 1) text = 'about an hour';
  else if (h < 48) text = h + ' hours';
  else if (h < 24 * 14) text = Math.trunc(h / 24) + ' days';
  else if (h < 24 * 60) text = Math.trunc(h / 24 / 7) + ' weeks';
  else if (h < 24 * 730) text = Math.trunc(h / 24 / 30) + ' months';
  return text + (seconds < 0 ? ' from now' : ' ago');
}

// time parses a time of Go's JSON, in seconds since 1970; 0 for none and for Go's zero time.
function time(text) {
  const ms = text ? Date.parse(text) : NaN;
  return ms > 0 ? ms / 1000 : 0;
}

function clock(seconds) { return seconds ? new Date(1000 * seconds).toLocaleTimeString('en-GB') : 'never'; }

// plain is text of other people: without characters that are invisible or turn text around.
const textMax = 120;
function plain(text) {
  const shown = [...String(text ?? '')].slice(0, textMax + 1).map((c) =>
    /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Cn}\p{Zl}\p{Zp}]/u.test(c) ? '\\u' + c.codePointAt(0).toString(16).padStart(4, '0') : c);
  return shown.length > textMax ? shown.slice(0, textMax).join('') + '…' : shown.join('');
}
