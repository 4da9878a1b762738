// Numbers as Go's package telemetry/show and Ollama print them.

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

function roundEven(n) { const low = Math.floor(n); return n - low === 0.5 ? low + low % 2 : Math.round(n); }

function percent(share) { return roundEven(100 * share) + '%'; }

// span is a length of time, of seconds, in at most two units.
function span(s) {
  if (!(s >= 0.0005)) return '0 s';
  if (s < 0.9995) return roundEven(1000 * s) + ' ms';
  if (s < 59.95) return fixed1(s) + ' s';
  if (s < 3600 - 0.5) return twoUnits(s, 60, 1, 'min', 's');
  if (s < 86400 - 30) return twoUnits(s, 3600, 60, 'h', 'min');
  if (s < 1e6 * 86400) return twoUnits(s, 86400, 3600, 'd', 'h');
  return 'more than a million days';
}

function twoUnits(s, large, small, largeName, smallName) {
  const whole = Math.round(s / small), per = large / small, rest = whole % per;
  return `${Math.floor(whole / per)} ${largeName}` + (rest ? ` ${rest} ${smallName}` : '');
}

// ago is the time that has passed, in one short unit. Clocks differ, so the future is now.
function ago(seconds) {
  if (seconds < 1) return 'just now';
  for (const [most, unit, name] of [[60, 1, 's'], [3600, 60, 'min'], [2 * 86400, 3600, 'h']]) {
    if (seconds < most) return `${Math.floor(seconds / unit)} ${name} ago`;
  }
  return Math.floor(seconds / 86400) + ' d ago';
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
