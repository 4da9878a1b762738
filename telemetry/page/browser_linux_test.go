package page

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// browser is a headless Chromium with one tab, driven over two pipes: messages of the DevTools
// protocol, each ended by a zero byte.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string

	mu     sync.Mutex
	next   int
	waits  map[int]chan message
	events []message
	closed bool
}

type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     json.RawMessage `json:"error,omitempty"`
}

// programs are names of browsers that speak the protocol.
var programs = []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"}

// openBrowser starts a browser, which ends with the test. Without one the test is skipped,
// except in the long form of the tests.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := os.Getenv("KVTIER_CHROMIUM")
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil && program == "" {
			program = path
		}
	}
	if program == "" {
		if os.Getenv("KVTIER_LONG") != "" {
			t.Fatal("no Chromium; install Debian's chromium-headless-shell, or name one in KVTIER_CHROMIUM")
		}
		t.Skip("no Chromium; install Debian's chromium-headless-shell, or name one in KVTIER_CHROMIUM")
	}
	in, to, err := os.Pipe()
	require.NoError(t, err)
	from, out, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(program, "--headless", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-gpu", "--disable-dev-shm-usage", "--no-sandbox")
	cmd.ExtraFiles = []*os.File{in, out} // descriptors 3 and 4
	require.NoError(t, cmd.Start())
	require.NoError(t, in.Close())
	require.NoError(t, out.Close())
	b := &browser{t: t, to: to, waits: make(map[int]chan message)}
	read := make(chan struct{})
	go func() { defer close(read); b.receive(from) }()
	t.Cleanup(func() {
		b.session = ""
		b.call("Browser.close", nil)
		<-read
		_ = cmd.Wait()
		_ = to.Close()
		_ = from.Close()
	})
	b.openTab()
	return b
}

func (b *browser) openTab() {
	var target struct{ TargetID string }
	b.into(b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var attached struct{ SessionID string }
	b.into(b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil)
	}
}

func (b *browser) into(result json.RawMessage, v any) {
	b.t.Helper()
	require.NoError(b.t, json.Unmarshal(result, v))
}

// receive hands each answer to its call, and keeps events, until the browser ends.
func (b *browser) receive(from io.Reader) {
	r := bufio.NewReader(from)
	for {
		data, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(data[:len(data)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.closed = true
			for _, wait := range b.waits {
				close(wait)
			}
			b.waits = nil
			b.mu.Unlock()
			return
		}
		if wait, ok := b.waits[m.ID]; ok {
			delete(b.waits, m.ID)
			wait <- m
		} else {
			b.events = append(b.events, m)
		}
		b.mu.Unlock()
	}
}

// call sends a command and returns its result, which is empty when the browser has ended.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.next++
	id, wait := b.next, make(chan message, 1)
	b.waits[id] = wait
	b.mu.Unlock()
	raw, err := json.Marshal(params)
	require.NoError(b.t, err)
	if params == nil {
		raw = json.RawMessage("{}")
	}
	data, err := json.Marshal(message{ID: id, SessionID: b.session, Method: method, Params: raw})
	require.NoError(b.t, err)
	if _, err := b.to.Write(append(data, 0)); err != nil {
		return nil // the browser has ended
	}
	answer := <-wait
	require.Empty(b.t, string(answer.Error), method)
	return answer.Result
}

// eval runs a script in the page, waits for a promise that it returns, and returns its value.
func (b *browser) eval(script string) any {
	b.t.Helper()
	var result struct {
		Result           struct{ Value any }
		ExceptionDetails *struct{ Exception struct{ Description string } }
	}
	b.into(b.call("Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true}), &result)
	if result.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", script, result.ExceptionDetails.Exception.Description)
	}
	return result.Result.Value
}

// until waits for a condition that the page makes true, looking after every change of it.
func (b *browser) until(condition string) {
	b.t.Helper()
	b.eval(fmt.Sprintf(`new Promise((done) => {
		const look = () => { if (!(%s)) return; watch.disconnect(); done(true); };
		const watch = new MutationObserver(look);
		watch.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
		look();
	})`, condition))
}

// view is a screen.
type view struct {
	width, height int
	dark, phone   bool
}

func (b *browser) open(url string, v view) {
	b.t.Helper()
	scheme := map[bool]string{true: "dark", false: "light"}[v.dark]
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": v.width, "height": v.height, "deviceScaleFactor": 1, "mobile": v.phone})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{
		{"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"},
	}})
	b.call("Emulation.setTimezoneOverride", map[string]any{"timezoneId": "UTC"})
	b.call("Page.navigate", map[string]any{"url": url})
	b.until(`location.href !== 'about:blank' && document.readyState === 'complete' && document.body.className !== ''`)
}

// screenshot is a PNG of the whole document, or of the window's height.
func (b *browser) screenshot(whole bool) []byte {
	b.t.Helper()
	params := map[string]any{"format": "png", "captureBeyondViewport": whole}
	if whole {
		box := b.eval(`[document.documentElement.clientWidth, document.documentElement.scrollHeight]`).([]any)
		params["clip"] = map[string]any{"x": 0, "y": 0, "width": box[0], "height": box[1], "scale": 1}
	}
	var shot struct{ Data string }
	b.into(b.call("Page.captureScreenshot", params), &shot)
	data, err := base64.StdEncoding.DecodeString(shot.Data)
	require.NoError(b.t, err)
	return data
}

// complaints are messages of the console, exceptions, and requests to other places than origin.
func (b *browser) complaints(origin string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for _, e := range b.events {
		switch e.Method {
		case "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded":
			list = append(list, string(e.Params))
		case "Network.requestWillBeSent":
			var sent struct{ Request struct{ URL string } }
			if err := json.Unmarshal(e.Params, &sent); err != nil {
				list = append(list, err.Error())
			}
			url := sent.Request.URL
			if !strings.HasPrefix(url, origin+"/") && !strings.HasPrefix(url, "data:") {
				list = append(list, "a request to "+url)
			}
		}
	}
	return list
}
