package front

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ollama/ollama/fs/ggml"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/diskstore/tier"
	"github.com/kvtier/kvtier/internal/jsonfile"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamatier/install"
)

// Variables of these tests.
const (
	mainVariable   = "KVTIER_TEST_MAIN"   // this program stands before a llama-server
	engineVariable = "KVTIER_TEST_ENGINE" // this program is a llama-server
	howVariable    = "KVTIER_TEST_HOW"    // the llama-server's fault
)

// heard counts the requests to an engine whose model is bad.
var heard atomic.Int64

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(engineVariable) != "":
		engine()
	case os.Getenv(mainVariable) != "":
		Main()
	}
	os.Exit(m.Run())
}

// engine is a llama-server with a fault.
func engine() {
	if os.Getenv(roleVariable)+os.Getenv(realVariable) != "" {
		fmt.Println("a variable of ours")
	}
	value := func(flag string) string { return os.Args[slices.Index(os.Args, flag)+1] }
	how, host := os.Getenv(howVariable), value("--host")
	savePath = value("--slot-save-path")
	switch {
	case !strings.HasSuffix(host, ".sock"):
		fmt.Println("alone", os.Args[1:])
		os.Exit(5)
	case how == "old" && slices.Contains(os.Args, "--metrics"):
		fmt.Println("error: invalid argument: --metrics")
		os.Exit(1)
	}
	l, err := net.Listen("unix", host)
	if err != nil {
		fmt.Println(err)
		os.Exit(6)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case how == "bad model":
			w.WriteHeader(http.StatusServiceUnavailable)
			w.(http.Flusher).Flush()
			// The answer is heard before the end: the next request comes from the same client.
			if heard.Add(1) > 1 {
				fmt.Println("error loading model")
				os.Exit(1)
			}
		case r.URL.Path == "/arguments":
			_ = json.NewEncoder(w).Encode(os.Args[1:])
		case r.URL.Path == "/crash":
			fmt.Println("crash")
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		default:
			fakeEngine(w, r)
		}
	})
	fmt.Println("listening")
	fmt.Println(http.Serve(l, handler))
	os.Exit(7)
}

// ours is this program before a llama-server with a fault.
type ours struct {
	t      *testing.T
	cmd    *exec.Cmd
	url    string
	log    string
	output bytes.Buffer
}

// startOurs starts this program with pages in a directory.
func startOurs(t *testing.T, dir, how string, env ...string) *ours {
	self, err := os.Executable()
	require.NoError(t, err)
	real := filepath.Join(dir, "llama-server-real")
	here, err := os.Getwd()
	require.NoError(t, err)
	script := fmt.Sprintf("#!/bin/sh\nunset %s\nexport %s=1\ncd %q\nexec %s \"$@\"\n", mainVariable, engineVariable, here, self)
	require.NoError(t, os.WriteFile(real, []byte(script), 0o700))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	require.NoError(t, l.Close())
	s := &ours{t: t, url: "http://127.0.0.1:" + port, log: filepath.Join(dir, "log")}
	model := "none.gguf"
	if blobs, _ := filepath.Glob(filepath.Join(dir, "sha256-*")); len(blobs) > 0 {
		model = blobs[0]
	}
	s.cmd = exec.Command(self, "-m", model, "--host", "127.0.0.1", "--port", port)
	s.cmd.Dir = dir
	s.cmd.Env = append(os.Environ(), mainVariable+"=1", howVariable+"="+how, realVariable+"="+real,
		"OLLAMA_KV_TIERING=1", "OLLAMA_KV_TIER_LOCAL="+filepath.Join(dir, "pages"), install.LogVariable+"="+s.log, "TMPDIR="+dir)
	s.cmd.Env = append(s.cmd.Env, env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.output, &s.output
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill()
			_ = s.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("output:\n%s\nlog:\n%s", s.output.String(), s.logged())
		}
	})
	return s
}

func (s *ours) logged() string {
	info, err := os.Stat(s.log)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	b, _ := os.ReadFile(s.log)
	return string(b)
}

// wait waits for the end of all, and returns the status.
func (s *ours) wait() syscall.WaitStatus {
	_ = s.cmd.Wait() // until nobody can write to the output
	return s.cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// ready waits until prompts are answered.
func (s *ours) ready() {
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		require.True(s.t, time.Now().Before(deadline), "prompts are not answered")
		res, err := http.Get(s.url + "/health")
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return
			}
		}
	}
}

// crash has the engine die in the middle of a request.
func (s *ours) crash() {
	res, err := http.Post(s.url+"/crash", "application/json", strings.NewReader("{}"))
	if err == nil {
		res.Body.Close()
	}
	require.Error(s.t, err, "a dead llama-server answers nothing")
}

// TestARouter runs alone, and the log says how its models are stored. Ollama starts one to see which devices there
// are, of which the log says nothing.
func TestARouter(t *testing.T) {
	dir := t.TempDir()
	real, log := filepath.Join(dir, "llama-server-real"), filepath.Join(dir, "log")
	require.NoError(t, os.WriteFile(real, []byte("#!/bin/sh\necho alone \"$@\"\n"), 0o700))
	self, err := os.Executable()
	require.NoError(t, err)
	run := func(line string) {
		cmd := exec.Command(self, strings.Fields(line)...)
		cmd.Env = append(os.Environ(), mainVariable+"=1", realVariable+"="+real, "OLLAMA_KV_TIERING=1", "HOME="+dir, "XDG_CONFIG_HOME=", install.LogVariable+"="+log)
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, "alone "+line+"\n", string(out))
	}
	run("--port 1 --host 127.0.0.1 --no-webui --offline --verbose")
	require.NoFileExists(t, log)
	run("--models-dir models")
	lines, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(lines), "\n"))
	require.Contains(t, string(lines), "run kvtier serve -- llama-server -m model.gguf for each model")
}

// TestAnEngineThatRefusesOurOptions runs as it was started. Its own output is there, and
// its own status counts.
func TestAnEngineThatRefusesOurOptions(t *testing.T) {
	s := startOurs(t, t.TempDir(), "old")
	require.Equal(t, 5, s.wait().ExitStatus())
	require.Contains(t, s.output.String(), "alone [-m none.gguf --host 127.0.0.1 --port ")
	require.Contains(t, s.logged(), "llama-server ended before it listened")
}

// TestTenantsNeverRunWithoutKvtier: llama-server alone would not keep them apart.
func TestTenantsNeverRunWithoutKvtier(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good"), filepath.Join(dir, "bad")
	require.NoError(t, os.WriteFile(good, []byte("red secret"), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("red secret\nsecret"), 0o600))
	for path, how := range map[string]string{good: "old", bad: ""} {
		s := startOurs(t, t.TempDir(), how, tierenv.TenantsVariable+"="+path)
		require.Equal(t, 1, s.wait().ExitStatus())
		require.Contains(t, s.output.String(), "does not keep the tenants of OLLAMA_KV_TIER_TENANTS_FILE apart")
		require.NotContains(t, s.output.String(), "alone [")
		require.NotContains(t, s.output.String()+s.logged(), "secret")
		if path == bad {
			require.Contains(t, s.logged(), "line 2 of "+bad)
		}
	}
	self, err := os.Executable()
	require.NoError(t, err)
	for _, line := range []string{"-m x --ssl-cert-file c", "--models-dir d", "-dr a"} {
		cmd := exec.Command(self, strings.Fields(line)...)
		cmd.Env = append(os.Environ(), mainVariable+"=1", realVariable+"=/bin/true", "OLLAMA_KV_TIERING=1", "HOME="+dir, "XDG_CONFIG_HOME=", install.LogVariable+"="+filepath.Join(dir, "log"), tierenv.TenantsVariable+"="+good)
		require.Error(t, cmd.Run(), line)
	}
}

// TestSettingsThatAreRefused: the engine runs alone, and the log says why in the words that
// people and kvtier ollama status search for.
func TestSettingsThatAreRefused(t *testing.T) {
	for setting, says := range map[string]string{
		"OLLAMA_KV_TIERING=yes":                  "neither 1 nor 0",
		"OLLAMA_KV_TIER_LOCAL_GB=lots":           "not a number of gigabytes",
		"OLLAMA_KV_TIER_LOCAL=/proc/1/no/folder": "/proc/1/no",
		"LLAMA_ARG_API_PREFIX=/x":                "its addresses have a prefix",
		"LLAMA_ARG_SSL_CERT_FILE=x.pem":          "it answers by TLS",
	} {
		s := startOurs(t, t.TempDir(), "", setting)
		require.Equal(t, 5, s.wait().ExitStatus())
		require.Contains(t, s.logged(), `msg="kv tier: off for this model" `)
		require.Contains(t, s.logged(), says)
	}
}

// TestAModelThatCannotBeLoaded: the status and the output are the engine's.
func TestAModelThatCannotBeLoaded(t *testing.T) {
	s := startOurs(t, t.TempDir(), "bad model")
	require.Equal(t, 1, s.wait().ExitStatus())
	require.Equal(t, "listening\nerror loading model\n", s.output.String())
}

// TestAModelWithoutPages keeps llama-server's own cache of prompts, which is off where slots are stored. Pages of
// another one are obsolete when Ollama has deleted its weights.
func TestAModelWithoutPages(t *testing.T) {
	for arch, cache := range map[string]bool{"llama4": true, "mamba": true, "llama": false} {
		models := t.TempDir()
		dir := filepath.Join(models, "blobs")
		require.NoError(t, errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(models, "manifests"), 0o700)))
		blob := filepath.Join(dir, "sha256-"+strings.Repeat("ab", 32))
		require.NoError(t, testmodel.WriteFile(blob, ggml.KV{"general.architecture": arch}, nil))
		s := startOurs(t, dir, "")
		s.ready()
		res, err := http.Get(s.url + "/arguments")
		require.NoError(t, err)
		var arguments []string
		require.NoError(t, json.NewDecoder(res.Body).Decode(&arguments))
		res.Body.Close()
		require.Equal(t, cache, !slices.Contains(arguments, "--cache-ram"), arch)
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 0, s.wait().ExitStatus())
		require.Equal(t, cache, strings.Contains(s.logged(), "cause=unsupported_model"), arch)
		if found, _ := filepath.Glob(filepath.Join(dir, "pages", "v1", "*", "manifest.json")); !cache {
			require.Len(t, found, 1)
			var m tier.Manifest
			require.NoError(t, jsonfile.Read(found[0], 1<<20, &m))
			of := diskstore.FingerprintUsage{Identity: m.Identity, Origin: m.Origin}
			require.False(t, tierenv.Config{}.StoreOptions().Obsolete(of))
			require.NoError(t, os.Rename(blob, filepath.Join(dir, "sha256-"+strings.Repeat("cd", 32))))
			require.True(t, tierenv.Config{}.StoreOptions().Obsolete(of))
		}
	}
}

// TestAnEngineThatCrashes: requests get an error, the end is the engine's, and after some times
// the engine runs alone. Nothing stays behind.
func TestAnEngineThatCrashes(t *testing.T) {
	dir := t.TempDir()
	for range crashesMax {
		s := startOurs(t, dir, "")
		s.ready()
		s.crash()
		require.Equal(t, syscall.SIGKILL, s.wait().Signal())
		require.Equal(t, "listening\ncrash\n", s.output.String())
	}
	s := startOurs(t, dir, "")
	require.Equal(t, 5, s.wait().ExitStatus())
	require.Equal(t, 1, strings.Count(s.logged(), "died 3 times"), s.logged())
	for _, parent := range []string{dir, filepath.Join(dir, "pages", filesFolder)} {
		folders, err := filepath.Glob(filepath.Join(parent, "kvtier-llama-*"))
		require.NoError(t, err)
		require.Empty(t, folders)
	}
}

// TestAnEndInOrder is no crash.
func TestAnEndInOrder(t *testing.T) {
	dir := t.TempDir()
	for range crashesMax + 1 {
		s := startOurs(t, dir, "")
		s.ready()
		require.NoError(t, s.cmd.Process.Kill())
		require.Equal(t, syscall.SIGKILL, s.wait().Signal())
	}
	b, err := os.ReadFile(filepath.Join(dir, "pages", "llama-server.json"))
	require.NoError(t, err)
	require.NotContains(t, string(b), "model")
}

// TestALogThatCannotBeOpened: a disk that hangs under the log holds nobody up.
func TestALogThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "log"), 0o600)) // without a reader
	s := startOurs(t, dir, "")
	s.ready()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, s.wait().ExitStatus())
	require.Equal(t, "listening\n", s.output.String())
}
