package front

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/digests"
	"github.com/kvtier/kvtier/internal/testmodel"
	"github.com/kvtier/kvtier/internal/tierenv"
	"github.com/kvtier/kvtier/llamastate"
	"github.com/kvtier/kvtier/llamatier"
	"github.com/kvtier/kvtier/llamatier/identity"
	"github.com/kvtier/kvtier/llamatier/process"
	"github.com/kvtier/kvtier/llamatier/proxy"
	"github.com/kvtier/kvtier/llamatier/slotfile"
)

// fakeEngine answers as a llama-server that has loaded a model. The file of its slot is one
// that a llama-server has saved.
func fakeEngine(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/slots":
		_, _ = io.WriteString(w, `[{"is_processing":false,"n_ctx":1000,"n_prompt_tokens":1}]`)
	case "/slots/0":
		if r.URL.Query().Get("action") == "save" {
			var in struct{ Filename string }
			_ = json.NewDecoder(r.Body).Decode(&in)
			if err := saveGolden(filepath.Join(savePath, in.Filename)); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		_, _ = io.WriteString(w, "{}")
	case "/completion":
		_, _ = io.WriteString(w, `{"timings":{"cache_n":0,"prompt_n":1,"predicted_n":1}}`)
	default:
		_, _ = io.WriteString(w, `{"status":"ok"}`)
	}
}

// savePath is where the engine saves slots.
var savePath string

func saveGolden(path string) error {
	b, err := os.ReadFile("../../llamastate/testdata/v2/full-1.bin")
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// newServer returns a server before an engine that runs in this process.
func newServer(t *testing.T, engine http.HandlerFunc) (*server, *httptest.Server) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	web := &http.Server{Handler: engine}
	go func() { _ = web.Serve(l) }()
	t.Cleanup(func() { require.NoError(t, web.Close()) })
	folder, err := slotfile.NewFolder(t.TempDir())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, folder.Remove()) })
	savePath = folder.Path
	s := &server{engine: llamatier.Dial(socket), log: slog.New(slog.DiscardHandler)}
	s.files = slotfile.New(folder, slotfile.Options{Log: s.log})
	s.proxy = proxy.New(s.engine, proxy.Ours{}, proxy.State{Listening: s.heard.Load, Ready: s.settled.Load}, s.log)
	front := httptest.NewServer(s.proxy)
	t.Cleanup(front.Close)
	return s, front
}

func status(t *testing.T, url string) int {
	res, err := http.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	return res.StatusCode
}

// TestAStoreThatHangsKeepsNoModelLoading: prompts are answered without the store, and with it as
// soon as it is open.
func TestAStoreThatHangsKeepsNoModelLoading(t *testing.T) {
	s, front := newServer(t, fakeEngine)
	require.Equal(t, http.StatusServiceUnavailable, status(t, front.URL+"/health"))
	hung, opened := make(chan struct{}), make(chan error)
	open := func(seen *engineLook) error {
		<-hung
		if seen.slots != 1 || seen.context != 1000 {
			opened <- fmt.Errorf("%+v", seen)
		}
		opened <- nil
		return nil
	}
	s.settle(open, 0)
	require.Equal(t, http.StatusOK, status(t, front.URL+"/health"))
	res, err := http.Post(front.URL+"/completion", "application/json", strings.NewReader(`{"prompt":[1]}`))
	require.NoError(t, err)
	res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	close(hung)
	require.NoError(t, <-opened)
}

// TestTheStoreIsWaitedForAWhile, so that the first prompt is restored on a disk that answers.
func TestTheStoreIsWaitedForAWhile(t *testing.T) {
	s, front := newServer(t, fakeEngine)
	s.settle(func(*engineLook) error {
		require.Equal(t, http.StatusServiceUnavailable, status(t, front.URL+"/health"))
		return nil
	}, time.Hour)
	require.Equal(t, http.StatusOK, status(t, front.URL+"/health"))
}

// TestALocalDiskThatHangs holds up the engine's start for a while only, and its errors count.
func TestALocalDiskThatHangs(t *testing.T) {
	s, _ := newServer(t, fakeEngine)
	hung := make(chan struct{})
	prepare := func() (*disk, error) {
		<-hung
		return nil, os.ErrPermission
	}
	require.NoError(t, s.awaitDisk(prepare, 0))
	close(hung)
	_, err := s.disk.wait()
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorIs(t, s.awaitDisk(prepare, time.Hour), os.ErrPermission)
}

// runs has this process be the engine of a server, with some arguments.
func (s *server) runs(args ...string) {
	s.command.Args = args
	s.run = &process.Daemon{Engine: s.engineCommand("s.sock", "")}
	s.run.Engine.Process = &os.Process{Pid: os.Getpid()}
}

// identified returns the identity of the pages of a server whose engine runs.
func identified(t *testing.T, s *server) (map[string]string, error) {
	config := tierenv.Config{PageTokens: 256}
	config.Local = t.TempDir()
	return s.identify(config, identity.Model{}, &engineLook{shape: &llamastate.Shape{}}, digests.Open(filepath.Join(config.Local, "digests.json")))
}

// aModel writes a model with some weights.
func aModel(t *testing.T, seed int64) string {
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, testmodel.Write(path, testmodel.Shape{Arch: "llama", Seed: seed}.WithDefaults()))
	return path
}

// TestOptionsThatNobodyKnows are named once in the log, and are part of the pages' identity.
func TestOptionsThatNobodyKnows(t *testing.T) {
	path := aModel(t, 1)
	numerics := make(map[string]string)
	for _, args := range []string{"", "--load-mode none", "--new 7"} {
		s, _ := newServer(t, fakeEngine)
		var lines strings.Builder
		s.log = slog.New(slog.NewTextHandler(&lines, nil))
		s.runs(append([]string{"-m", path}, strings.Fields(args)...)...)
		keys, err := identified(t, s)
		require.NoError(t, err)
		numerics[args] = keys[tierenv.KeyNumerics]
		require.Equal(t, args == "--new 7", strings.Contains(lines.String(), "options=--new"), lines.String())
	}
	require.Equal(t, numerics[""], numerics["--load-mode none"])
	require.Equal(t, "--new 7", strings.TrimPrefix(numerics["--new 7"], numerics[""]))
}

// TestAModelThatIsReplaced after the engine has read it gives the engine's rows no name.
func TestAModelThatIsReplaced(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		path := aModel(t, 1)
		s, _ := newServer(t, fakeEngine)
		s.runs("-m", path)
		if replaced {
			require.NoError(t, os.Rename(aModel(t, 2), path))
		}
		_, err := identified(t, s)
		require.Equal(t, replaced, err != nil, "%v", err)
	}
}
