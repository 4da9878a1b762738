package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/doctor/doctortest"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/llamatier/install"
)

// built is this program, built once.
var built struct {
	sync.Once
	program []byte
	err     error
}

// buildKvtier builds this program, which tells itself by Go's notes from others.
func buildKvtier(ts *testscript.TestScript, args []string) {
	built.Do(func() {
		dir, err := os.MkdirTemp("", "kvtier-")
		ts.Check(err)
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "kvtier")
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", path, "github.com/kvtier/kvtier/cmd/kvtier")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			built.err = err
			ts.Logf("%s", out)
			return
		}
		built.program, built.err = os.ReadFile(path)
	})
	ts.Check(built.err)
	// A program that another script starts would hold the file for writing for a moment: it could not be run then.
	syscall.ForkLock.RLock()
	err := os.WriteFile(ts.MkAbs(args[0]), built.program, 0o700)
	syscall.ForkLock.RUnlock()
	ts.Check(err)
	ts.Check(os.Chmod(ts.MkAbs(args[0]), 0o755))
}

// printCall prints how this program was called in the place of llama-server.
func printCall() int {
	for _, line := range slices.Concat(os.Args[1:], os.Environ()) {
		fmt.Println(line)
	}
	return 0
}

// TestDockerLines: docs/install.md has the same file.
func TestDockerLines(t *testing.T) {
	text, err := os.ReadFile("../../docs/install.md")
	require.NoError(t, err)
	_, lines, found := strings.Cut(string(text), "```dockerfile\n")
	require.True(t, found)
	lines, _, _ = strings.Cut(lines, "```")
	require.Contains(t, dockerLines, lines)
}

// TestTryWithoutTiering: the error names the command line that turns tiering on for the Ollama that was asked.
func TestTryWithoutTiering(t *testing.T) {
	loaded := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/show":
			fmt.Fprint(w, `{"capabilities":["completion"],"model_info":{"llama.context_length":2048}}`)
		case "/api/chat":
			loaded = true
			fmt.Fprint(w, `{"message":{"content":"Yes."},"done":true,"prompt_eval_count":1000,"prompt_eval_cached_count":0}`+"\n")
		case "/api/ps":
			models := map[bool]string{true: `{"name":"small"}`, false: ""}
			fmt.Fprintf(w, `{"models":[%s]}`, models[loaded])
		default:
			loaded = false
			fmt.Fprint(w, "{}")
		}
	}))
	t.Cleanup(server.Close)
	t.Setenv("OLLAMA_HOST", server.URL)
	off := install.Status{URL: server.URL, Executable: "/opt/ollama/bin/ollama", State: install.None, Cure: "kvtier ollama install --prefix /opt/ollama"}
	other := install.Status{URL: "http://127.0.0.1:1", Cure: "no"}
	said := func(all ...install.Status) string {
		m := doctortest.Healthy()
		m.Statuses = all
		status, _, stderr := kvtierOn(t, host{machine: m}, "try", "small")
		require.Equal(t, 1, status)
		return stderr
	}
	require.Contains(t, said(other, off), "Error: the question was computed again. kvtier is not installed for /opt/ollama/bin/ollama; run kvtier ollama install --prefix /opt/ollama\n")
	off.Hints = []string{"The server runs without it; run X."}
	require.Contains(t, said(off), "Error: the question was computed again. The server runs without it; run X\n")
	require.Contains(t, said(other), "again. "+machine.WithSudo("ollama", "status")+" and "+machine.WithSudo("doctor")+" say why\n")
}

func TestAsk(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "n\n": false, "\n": false, "": false, "yeah\n": false} {
		var out bytes.Buffer
		require.Equal(t, want, ask(strings.NewReader(answer), &out), answer)
		require.Equal(t, "Continue? [y/N] ", out.String())
	}
}

// TestOllamaOutput: plans and statuses as people see them.
func TestOllamaOutput(t *testing.T) {
	var out bytes.Buffer
	o := &output{stdout: &out, stderr: &out}
	plan := &install.Plan{
		Ollama: install.Ollama{Folder: "/usr/lib/ollama", Service: "ollama.service"},
		Steps:  []install.Step{{Text: "write /etc/kvtier.conf", Shows: "[Service]\nStateDirectory=kvtier\n"}, {Text: "systemctl daemon-reload"}},
		Hints:  []string{"Ollama v0.99.0 is newer than v0.34.2."},
	}
	require.NoError(t, ollamaFlags{dryRun: true}.carryOut(t.Context(), o, plan, "install"))
	require.Equal(t, `The steps of install:

  1. write /etc/kvtier.conf
       | [Service]
       | StateDirectory=kvtier
  2. systemctl daemon-reload

Ollama v0.99.0 is newer than v0.34.2.
`, out.String())
	out.Reset()
	require.ErrorContains(t, ollamaFlags{}.carryOut(t.Context(), o, plan, "install"), "nobody can be asked here")
	require.NotContains(t, out.String(), "| ", "files are shown where nothing is done")

	out.Reset()
	all := []install.Status{
		{
			Ollama: "0.34.2", Service: "ollama.service", Folder: "/usr/local/lib/ollama", State: install.Installed, Kvtier: "0.1.0",
			URL: "http://127.0.0.1:11434", Answers: true, Tiering: "on", Log: "/var/log/kvtier/llama-server.log", LastLog: `msg="kv tier: on"`,
		},
		{Executable: "/usr/bin/ollama", State: install.Unsupported, Tiering: "off", Hints: []string{"/usr/bin/ollama has no llama-server."}},
	}
	require.NoError(t, showStatus(o, all))
	require.Equal(t, `OLLAMA    SERVICE           FOLDER                   STATE          KVTIER    SERVER             TIERING
0.34.2    ollama.service    /usr/local/lib/ollama    installed      0.1.0     127.0.0.1:11434    on
-         -                 -                        unsupported    -         no answer          off

/var/log/kvtier/llama-server.log ends with: msg="kv tier: on"

/usr/bin/ollama has no llama-server.
`, out.String())

	out.Reset()
	o.asJSON = true
	require.NoError(t, showStatus(o, all[:1]))
	require.JSONEq(t, `[{"ollama": "0.34.2", "executable": "", "service": "ollama.service", "folder": "/usr/local/lib/ollama",
		"state": "installed", "kvtier": "0.1.0", "url": "http://127.0.0.1:11434", "answers": true, "tiering": "on", "pages": "",
		"log": "/var/log/kvtier/llama-server.log", "last_log": "msg=\"kv tier: on\"", "hints": null, "cure": ""}]`, out.String())
	all[0].State = install.Replaced
	require.ErrorContains(t, showStatus(o, all), "needs attention")
}
