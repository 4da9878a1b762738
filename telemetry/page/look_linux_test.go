package page

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ollama/ollama/format"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// shots is a folder for pictures of the page, for people to look at.
var (
	shots = flag.String("shots", "", "write screenshots into this folder")
	of    = flag.String("of", "", "take the pictures of docs of the state of the real server at this address")
)

// served is a server of the page whose state a test may change.
type served struct {
	*httptest.Server
	mu    sync.Mutex
	state telemetry.State
	err   error
}

func serve(t *testing.T, state telemetry.State) *served {
	t.Helper()
	s := &served{state: state}
	s.Server = httptest.NewServer(Handler(func(context.Context) (telemetry.State, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.state, s.err
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *served) set(state telemetry.State, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.err = state, err
}

// hostile has names that try to be HTML, to control a terminal, and to be very long.
func hostile(state telemetry.State) telemetry.State {
	evil := `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>` + "\u202e\x1b[31m" + strings.Repeat("W", 300)
	state.Root, state.Tiers[1].Root, state.Tiers[0].Name = evil, evil, evil
	state.Models[0].Model.Name, state.Models[1].Engine, state.Models[1].Model.Namespace = evil, evil, evil
	state.Models[0].Totals[telemetry.Series("ollama_kv_misses_total", "cause", evil)] = 3
	state.Models[0].Totals[telemetry.Series("ollama_kv_misses_total", "cause", "constructor")] = 3
	state.Processes[0].Model.Name, state.Processes[0].Memory[0].Name, state.Processes[1].Elastic[0].Segment = evil, evil, evil
	state.Prompts[63].Miss = &telemetry.Miss{Cause: telemetry.Cause(evil), Detail: evil, From: evil}
	return state
}

// views are the screens on which every check is made.
var views = map[string]view{
	"phone":        {width: 360, height: 740, phone: true},
	"phone-dark":   {width: 360, height: 740, phone: true, dark: true},
	"desktop":      {width: 1280, height: 800},
	"desktop-dark": {width: 1280, height: 800, dark: true},
}

func TestPageInABrowser(t *testing.T) {
	b := openBrowser(t)
	base := time.Now()
	empty, waiting, stale, down := telemetry.State{Root: "/var/lib/ollama-kv", At: base, Live: true}, sample(base), sample(base), sample(base)
	waiting.Prompts, waiting.Models = nil, nil
	stale.At = base.Add(-3 * time.Hour)
	down.Tiers[2].Down, down.Tiers[1].Quarantined, down.Tiers[1].Booked = true, 2, 99.5*gb
	for name, state := range map[string]telemetry.State{
		"sample": sample(base), "hostile": hostile(sample(base)), "empty": empty, "waiting": waiting, "stale": stale, "down": down,
	} {
		s := serve(t, state)
		for screen, v := range views {
			b.open(s.URL, v)
			require.Empty(t, b.eval(overflowing), "%s on %s is wider than the screen", name, screen)
			require.Empty(t, b.eval(faint), "%s on %s has text of little contrast", name, screen)
			require.Empty(t, b.eval(unnamed), "%s on %s", name, screen)
			require.Equal(t, "kvtier", b.eval(`document.title`))
			require.Zero(t, b.eval(`document.querySelectorAll('img, iframe, object, embed, body script:not(:last-child)').length`))
			save(t, b, name+"-"+screen)
		}
		require.Empty(t, b.complaints(s.URL))
		b.mu.Lock()
		b.events = nil
		b.mu.Unlock()
	}
}

func save(t *testing.T, b *browser, name string) {
	t.Helper()
	if *shots == "" {
		return
	}
	b.eval(`document.querySelectorAll('details').forEach((d) => d.open = false)`)
	require.NoError(t, os.WriteFile(filepath.Join(*shots, name+".png"), b.screenshot(true), 0o644))
}

// overflowing lists elements that reach over the right edge of the window.
const overflowing = `(() => {
	document.querySelectorAll('details').forEach((d) => d.open = true);
	const wide = document.documentElement.clientWidth;
	const list = [...document.querySelectorAll('body *')].filter((e) => !e.closest('svg, .skip, thead') && e.getBoundingClientRect().right > wide + 0.5);
	if (document.documentElement.scrollWidth > wide) list.push(document.documentElement);
	return list.map((e) => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 60));
})()`

// faint lists text whose contrast with its background is less than 4.5, as WCAG 2 asks for.
const faint = `(() => {
	const rgb = (text) => text.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
		.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const back = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
	const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
	return [...document.querySelectorAll('body *')].filter((e) => own(e) && !['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(e.tagName)).flatMap((e) => {
		const style = getComputedStyle(e), a = light(rgb(e.closest('svg') ? style.fill : style.color)), b = light(back(e.closest('svg')?.parentElement ?? e));
		const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		return contrast < 4.5 ? [contrast.toFixed(2) + ' ' + e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 40)] : [];
	});
})()`

// unnamed lists elements that a screen reader could not name, and ids that occur twice.
const unnamed = `(() => {
	const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
	const lost = [...document.querySelectorAll('section, [role=meter], [role=slider], [role=table]')]
		.filter((e) => !e.hidden && !e.getAttribute('aria-label') && !document.getElementById(e.getAttribute('aria-labelledby'))?.textContent);
	return [...lost.map((e) => e.outerHTML.slice(0, 80)), ...ids.filter((id, i) => ids.indexOf(id) !== i)];
})()`

// TestPicturesOfTheDocuments writes the pictures of docs, with -shots and -of: those are of a server
// that has answered real prompts.
func TestPicturesOfTheDocuments(t *testing.T) {
	if *shots == "" || *of == "" {
		t.Skip("without -shots and -of no picture is written")
	}
	answer, err := http.Get(*of + "/state.json")
	require.NoError(t, err)
	defer answer.Body.Close()
	var state telemetry.State
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&state))
	b := openBrowser(t)
	s := serve(t, state)
	for name, v := range map[string]view{"page": {width: 1000, height: 1120, phone: true}, "page-phone": {width: 360, height: 860, phone: true, dark: true}} {
		b.open(s.URL, v)
		b.call("Emulation.setScrollbarsHidden", map[string]any{"hidden": true})
		b.until(`document.querySelector('#timeline svg')`)
		require.NoError(t, os.WriteFile(filepath.Join(*shots, name+".png"), b.screenshot(false), 0o644))
	}
}

// textOf is the text that a user sees in an element.
func (b *browser) textOf(id string) string {
	b.t.Helper()
	return b.eval(`document.getElementById('` + id + `').innerText.replace(/\s+/g, ' ')`).(string)
}

// The numbers on the page are those of the state, worked out here in another way.
func TestNumbersOfTheState(t *testing.T) {
	b := openBrowser(t)
	state := sample(time.Now())
	state.Hints = []string{"The installation was replaced. Run kvtier ollama install."}
	s := serve(t, state)
	b.open(s.URL, views["desktop"])
	var tokens, computed, restored, kept int
	var saved time.Duration
	restores, evicted := 0, 0
	for _, p := range state.Prompts {
		tokens, computed, restored, kept = tokens+p.Tokens, computed+p.Computed, restored+p.RAM+p.Local+p.Remote, kept+p.Slot
		saved += p.Saved
		if p.RAM+p.Local+p.Remote > 0 {
			restores++
		}
		if p.Miss != nil && p.Miss.Cause == telemetry.CauseEvicted {
			evicted++
		}
	}
	comma := func(n int) string { return show.Count(int64(n)) }
	text := b.textOf("tiles")
	require.Contains(t, text, show.Percent(float64(tokens-computed)/float64(tokens)))
	require.Contains(t, text, "Tokens restored "+comma(restored))
	require.Contains(t, text, fmt.Sprintf("in %d restores of %d prompts", restores, len(state.Prompts)))
	require.Contains(t, text, "Tokens computed "+comma(computed))
	require.Contains(t, text, comma(kept)+" tokens were still in a slot")
	require.Contains(t, text, show.Seconds(saved.Seconds()))
	require.Contains(t, text, "estimate")
	require.Contains(t, b.textOf("misses"), fmt.Sprintf("evicted %d prompts", evicted))
	require.Contains(t, b.textOf("tiers"), "41 GB of 100 GB (41%)")
	require.Contains(t, b.textOf("tiers"), "written today: 6.1 GB of 50 GB")
	require.Contains(t, b.textOf("tiers"), "120 GB, budget: all but 5 % of the disk")
	require.Contains(t, b.textOf("slots"), "8,192 tokens")
	require.Contains(t, b.textOf("models"), "weights 99aa88bb77cc")
	require.Contains(t, b.textOf("hints"), state.Hints[0])
	require.Contains(t, b.textOf("hints"), "Tokens 61 to 64 changed in 7 prompts in a row of qwen3:4b, so 21,300 tokens behind them were computed again.")
	require.Contains(t, b.textOf("memory"), "write queue")
	require.Contains(t, b.textOf("memory"), "elastic memory kvcached_8_cuda0")
	b.eval(`document.querySelector('details').open = true`)
	require.Equal(t, float64(len(state.Prompts)), b.eval(`document.querySelectorAll('#prompts tbody tr').length`))
	require.Contains(t, b.textOf("prompts"), "evicted from local 2 h ago, at token")
}

// Arrow keys, the mouse and a finger choose a prompt, and a screen reader is told of it.
func TestTimelineIsUsable(t *testing.T) {
	b := openBrowser(t)
	s := serve(t, sample(time.Now()))
	b.open(s.URL, views["phone"])
	b.eval(`byID('timeline').focus()`)
	last := b.textOf("chosen")
	press := func(key string) {
		for _, kind := range []string{"keyDown", "keyUp"} {
			b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key})
		}
	}
	press("ArrowLeft")
	before := b.textOf("chosen")
	require.NotEqual(t, last, before)
	require.Equal(t, before, b.eval(`byID('timeline').getAttribute('aria-valuetext')`))
	press("End")
	require.Equal(t, last, b.textOf("chosen"))
	press("Home")
	first := b.textOf("chosen")
	require.NotEqual(t, last, first)
	b.eval(`byID('timeline').scrollIntoView()`)
	at := b.eval(`(() => { const r = byID('timeline').getBoundingClientRect(); return [r.right - 5, r.top + 80]; })()`).([]any)
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		b.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1})
	}
	require.NotEqual(t, first, b.textOf("chosen"))
	b.eval(`byID('scatter').scrollIntoView()`)
	b.eval(`byID('scatter').querySelector('circle').dispatchEvent(new PointerEvent('pointerdown', { bubbles: true, clientX: 60, clientY: 60 }))`)
	require.Empty(t, b.complaints(s.URL))
}

// The page says when its numbers are old, when they cannot be read, and when its server is
// gone, and goes on when it is back.
func TestStaleAndDisconnected(t *testing.T) {
	b := openBrowser(t)
	state := sample(time.Now())
	s := serve(t, state)
	b.open(s.URL, views["desktop"])
	require.Equal(t, "Live", b.textOf("status-text"))
	s.set(telemetry.State{}, errors.New("the files are of another user"))
	b.until(`document.body.className === 'lost'`)
	require.Contains(t, b.textOf("notice"), "could not be read. kvtier doctor")
	require.Contains(t, b.textOf("notice"), "goes on trying")
	require.Contains(t, b.textOf("tiers"), "41 GB of 100 GB")
	state.At = time.Now().Add(-3 * time.Hour)
	s.set(state, nil)
	b.until(`document.body.className === 'stale'`)
	require.Equal(t, "Numbers of "+state.At.UTC().Format("15:04:05")+", 3 h ago", b.textOf("status-text"))
	require.Contains(t, b.textOf("notice"), "has not been heard of since")
	state = sample(time.Now())
	s.set(state, nil)
	b.until(`document.body.className === 'live'`)
	require.Empty(t, b.textOf("notice"))
	s.CloseClientConnections()
	s.Server.Close()
	b.until(`document.body.className === 'lost'`)
	require.Contains(t, b.textOf("notice"), "No answer from the server of this page.")
}

func TestEmptyPageSaysWhatToDo(t *testing.T) {
	b := openBrowser(t)
	s := serve(t, telemetry.State{At: time.Now(), Live: true})
	b.open(s.URL, views["phone"])
	require.Contains(t, b.textOf("empty"), "sudo kvtier ollama install")
	require.Contains(t, b.textOf("empty"), "kvtier doctor")
	s.set(sample(time.Now()), nil)
	b.until(`byID('empty').hidden && !byID('content').hidden`)
}

// The scripts write numbers as Ollama's format package does, and know every cause.
func TestScriptsAgreeWithGo(t *testing.T) {
	b := openBrowser(t)
	b.open(serve(t, telemetry.State{At: time.Now()}).URL, views["desktop"])
	for _, n := range []int64{0, 1, 999, 1000, 1001, 1249, 1250, 1350, 1750, 9949, 9950, 9999, 10_000, 999_999, 1_050_000, 2_250_000, 41_300_000_000, 5_000_000_000_000, 1 << 50} {
		require.Equal(t, format.HumanBytes(n), b.eval(fmt.Sprintf("bytes(%d)", n)))
	}
	for _, f := range []float64{-1, 0, 0.0004, 0.0005, 0.0025, 0.033, 0.9994, 0.9995, 1.25, 4.2, 59.9, 59.96, 60, 724, 3599, 3599.6, 11520, 86370, 262800, 1e12} {
		require.Equal(t, show.Seconds(f), b.eval(fmt.Sprintf("span(%v)", f)), f)
		require.Equal(t, show.Ago(now.Add(-time.Duration(min(f, 1e9)*float64(time.Second))), now), b.eval(fmt.Sprintf("ago(%v)", min(f, 1e9))), f)
	}
	for _, f := range []float64{0, 0.004, 0.005, 0.015, 0.756, 0.999, 1} {
		require.Equal(t, show.Percent(f), b.eval(fmt.Sprintf("percent(%v)", f)), f)
	}
	for _, n := range []int64{0, 7, 999, 1000, 1234567} {
		require.Equal(t, show.Count(n), b.eval(fmt.Sprintf("count(%d)", n)))
	}
	for _, e := range telemetry.Obstacles {
		text := b.eval(fmt.Sprintf("unstoredText({model: {name: 'm'}, unstored: {cause: %q, detail: 'why', since: '2026-01-01T00:00:00Z'}}, 1767225660)", e.Cause))
		require.Equal(t, "Conversations of m are not stored: "+e.Means+" (why), first seen 1 min ago. "+remedies.Replace(e.Remedy), text)
	}
	require.Contains(t, b.eval("unstoredText({unstored: {cause: 'constructor'}}, 0)"), "a newer program gave this cause")
	for e, want := range map[int]string{-5: "10 µs", -4: "0.1 ms", -3: "1 ms", -1: "100 ms", 0: "1 s", 2: "100 s"} {
		require.Equal(t, want, b.eval(fmt.Sprintf("secondsLabel(%d)", e)))
	}
	for _, e := range telemetry.Causes {
		name, err := json.Marshal(e.Cause)
		require.NoError(t, err)
		require.Contains(t, b.eval(fmt.Sprintf("causeMeaning(%s)", name)), remedies.Replace(e.Remedy))
	}
}
