package docs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const gateway = "docs/gateway/nginx.conf"

// boxes are servers behind a gateway. Each answers with its name, what has come, and that once more.
type boxes struct {
	servers []*httptest.Server
	gateway *http.Client
}

// startGateway starts the nginx of scripts/debian-servers with the documented configuration.
func startGateway(t *testing.T) *boxes {
	unpacked, err := filepath.Abs(filepath.Join(root, "build", "nginx"))
	require.NoError(t, err)
	nginx := filepath.Join(unpacked, "usr", "sbin", "nginx")
	if _, err := os.Stat(nginx); err != nil {
		require.NotEqual(t, "true", os.Getenv("CI"), "run scripts/debian-servers")
		t.Skip("no nginx: run scripts/debian-servers: ", err)
	}
	dir, err := os.MkdirTemp("", "gateway") // a socket's path has 100 bytes at most
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, text := filepath.Join(dir, "socket"), read(t, gateway)
	replace := func(old, new string) {
		require.Contains(t, text, old)
		text = strings.ReplaceAll(text, old, new)
	}
	replace("listen 8080;", "listen unix:"+socket+";")
	b := &boxes{}
	for i := range 3 {
		box := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "box %d %s %d", i, r.URL.Path, len(body))
		}))
		t.Cleanup(box.Close)
		b.servers = append(b.servers, box)
		replace(fmt.Sprintf("10.0.0.%d:8080", 11+i), box.Listener.Addr().String())
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "conf.d"), 0o700))
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	write("conf.d/nginx.conf", text)
	write("conf.d/kvtier.js", read(t, "docs/gateway/kvtier.js"))
	write("nginx.conf", fmt.Sprintf(`
		%s load_module %s/usr/lib/nginx/modules/ngx_http_js_module.so;
		daemon off; pid pid; error_log stderr;
		events {}
		http { access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
			include conf.d/*.conf; }`, map[bool]string{true: "user root;"}[os.Getuid() == 0], unpacked))
	cmd := exec.Command(nginx, "-p", dir, "-c", "nginx.conf", "-e", "stderr")
	var said strings.Builder
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // its workers end with it
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(said.String())
		}
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	b.gateway = &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	require.Eventually(t, func() bool {
		conn, err := dial(t.Context(), "", "")
		if err == nil {
			conn.Close()
		}
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	return b
}

// ask sends a body, and returns the box that answers.
func (b *boxes) ask(t *testing.T, path, body string) (box string) {
	t.Helper()
	res, err := b.gateway.Post("http://gateway"+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer res.Body.Close()
	said, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, string(said))
	box, rest, _ := strings.Cut(strings.TrimPrefix(string(said), "box "), " ")
	require.Equal(t, fmt.Sprintf("%s %d", path, len(body)), rest)
	return box
}

// chat is the body of a request of one of some conversations after some turns.
func chat(t *testing.T, conversation, turns int, system string) string {
	type message struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	}
	messages := []message{{"system", system}, {"user", fmt.Sprint("Question ", conversation)}}
	for turn := range turns {
		messages = append(messages, message{"assistant", "Answer."}, message{"user", []any{map[string]any{"type": "text", "text": fmt.Sprint("And ", turn)}}})
	}
	body, err := json.Marshal(map[string]any{"temperature": float64(turns), "model": "m", "messages": messages})
	require.NoError(t, err)
	return string(body)
}

// TestGateway: all turns of a conversation reach one box, conversations spread, also those with one system prompt, and
// when a box is gone its conversations move, and no others.
func TestGateway(t *testing.T) {
	b := startGateway(t)
	system := strings.Repeat("You are an agent. ", 1000)
	homes, used := make([]string, 60), make(map[string]int)
	for c := range homes {
		homes[c] = b.ask(t, "/v1/chat/completions", chat(t, c, 0, system))
		used[homes[c]]++
		for turns := 1; turns < 4; turns++ {
			require.Equal(t, homes[c], b.ask(t, "/v1/chat/completions", chat(t, c, turns, system)))
		}
	}
	require.Len(t, used, 3, "%v", used)
	prompt := strings.Repeat("Once upon a time. ", 100)
	home := b.ask(t, "/completion", fmt.Sprintf(`{"prompt": %q}`, prompt))
	require.Equal(t, home, b.ask(t, "/completion", fmt.Sprintf(`{"prompt": %q}`, prompt+"The end.")))
	for _, body := range []string{"", "{", "[]", `{"messages": 5}`, `{"messages": [null]}`, `{"prompt": [1, 2, 3]}`, `{"messages": [{"role": "user", "content": "` + strings.Repeat("x", 10<<20) + `"}]}`} {
		b.ask(t, "/v1/chat/completions", body)
	}

	b.servers[0].Close()
	for c, home := range homes {
		now := b.ask(t, "/v1/chat/completions", chat(t, c, 5, system))
		if home == "0" {
			require.NotEqual(t, "0", now)
		} else {
			require.Equal(t, home, now)
		}
	}
}
