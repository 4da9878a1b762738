package rates

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// names are the tiers of a runner.
var names = map[string]string{"local": "/ssd/pages", "remote": "/nfs/pages"}

func open(t testing.TB, path, fingerprint string) *Rates {
	r, err := Open(path, fingerprint, names)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func TestRatesOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	m := machine{token: 1e-3, perPosition: 1e-7, tiers: map[string]float64{"local": 1 * GB, "remote": 10 * MB}}
	r := open(t, path, "model")
	m.compute(r, 0, 8192)
	m.learn(r, "local")
	m.learn(r, "remote")
	require.NoError(t, r.Close())

	again := open(t, path, "model")
	require.Equal(t, 16, again.Plan(Chain{Pages: pagesOf("local", 16)}))
	require.Zero(t, again.Plan(Chain{Pages: pagesOf("remote", 16)}))
	require.InEpsilon(t, m.computing(0, 8192), again.computingLocked(0, 8192), 0.01)

	// another model computes at its own speed, from the same tiers
	other := open(t, path, "other model")
	require.False(t, other.compute.known())
	require.True(t, other.tierLocked("remote").trusted(Whole))

	// a tier is known by its directory, even if it serves as another tier
	moved, err := Open(path, "model", map[string]string{"local": "/nfs/pages", "remote": "/elsewhere"})
	require.NoError(t, err)
	require.Zero(t, moved.Plan(Chain{Pages: pagesOf("local", 16)}))
	require.False(t, moved.tierLocked("remote").read[Whole].alone.known())
}

func TestDisappointmentOutlivesTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	r := open(t, path, "model")
	machine{token: 1e-3}.compute(r, 0, 8192)
	w := r.Watch(Chain{Pages: pagesOf("remote", 16)}, testAhead)
	w.GaveUp(w.Deadline())
	n, limit := r.Probe(Chain{Pages: pagesOf("remote", 16)}, testAhead)
	r.Probed(pagesOf("remote", n), limit, false)
	require.NoError(t, r.Save())

	again := open(t, path, "model")
	require.Zero(t, again.Plan(Chain{Pages: pagesOf("remote", 16)}))
	n, _ = again.Probe(Chain{Pages: pagesOf("remote", 16)}, testAhead)
	require.Zero(t, n, "it was probed a moment ago")
}

func TestProcessesKeepEachOthersRates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	a, b := open(t, path, "a"), open(t, path, "b")
	m := machine{token: 1e-3, tiers: map[string]float64{"local": 1 * GB, "remote": 10 * MB}}
	m.compute(a, 0, 4096)
	m.learn(a, "local")
	m.compute(b, 0, 4096)
	m.learn(b, "remote")
	require.NoError(t, a.Save())
	require.NoError(t, b.Save())
	require.NoError(t, a.Save())
	for _, fingerprint := range []string{"a", "b"} {
		r := open(t, path, fingerprint)
		require.True(t, r.compute.known())
		require.True(t, r.tierLocked("local").trusted(Whole))
		require.True(t, r.tierLocked("remote").trusted(Whole))
	}
}

func TestNothingObservedWritesNothing(t *testing.T) {
	dir := t.TempDir()
	r := open(t, filepath.Join(dir, "rates.json"), "model")
	r.Plan(Chain{Pages: pagesOf("remote", 4)})
	require.NoError(t, r.Close())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	require.NoError(t, New().Save(), "rates without a file")
	require.NoError(t, New().Close())
}

func TestFileStaysSmall(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	at := time.Unix(1e9, 0)
	for i := range modelsMax + 10 {
		r, err := Open(path, fmt.Sprintf("model %d", i), map[string]string{"local": fmt.Sprintf("/tier/%d", i)})
		require.NoError(t, err)
		at = at.Add(time.Hour)
		now := at
		r.now = func() time.Time { return now }
		for x := 1.0; x < 1e12; x *= 1.5 {
			r.Computed(512, x, time.Second)
			r.mu.Lock()
			r.tookLocked([]Page{{Bytes: int64(x), Tier: "local"}}, 1, 1)
			r.mu.Unlock()
		}
		require.NoError(t, r.Close())
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(fileBytesMax))
	c, err := load(path)
	require.NoError(t, err)
	require.Len(t, c.Models, modelsMax)
	require.Len(t, c.Tiers, tiersMax)
	require.NotContains(t, c.Models, "model 9")
	require.Contains(t, c.Models, "model 10")
	leftovers, err := filepath.Glob(path + "*.tmp")
	require.NoError(t, err)
	require.Empty(t, leftovers)
}

// A file that cannot be used counts as missing, and is replaced.
func TestUnusableFilesAreMadeAnew(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"not JSON":       func(path string) error { return os.WriteFile(path, []byte("not json"), 0o600) },
		"another schema": func(path string) error { return os.WriteFile(path, []byte(`{"models": 7}`), 0o600) },
		"a newer version": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":99,"tiers":{"/nfs/pages":{"page_seconds":{"whole":[[1,1]]}}}}`), 0o600)
		},
		"an older version": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":1,"tiers":{"/nfs/pages":{"page_seconds":{"whole":[[1,1e6]]}}}}`), 0o600)
		},
		"too large": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":2}`+strings.Repeat(" ", fileBytesMax)), 0o600)
		},
		"empty": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"a link": func(path string) error {
			return os.Symlink(filepath.Join(filepath.Dir(path), "elsewhere"), path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "rates.json")
			require.NoError(t, make(path))
			r, _ := Open(path, "model", names)
			require.Equal(t, 4, r.Plan(Chain{Pages: pagesOf("remote", 4)}))
			machine{token: 1e-3}.compute(r, 0, 4096)
			require.NoError(t, r.Close())
			require.True(t, open(t, path, "model").compute.known())
			_, err := os.Lstat(filepath.Join(filepath.Dir(path), "elsewhere"))
			require.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

func TestFileThatCannotBeWritten(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "missing", "rates.json"), "model", names)
	require.NoError(t, err)
	machine{token: 1e-3}.compute(r, 0, 4096)
	require.ErrorContains(t, r.Close(), "rates")
}

// FuzzFile opens arbitrary files, plans with their rates, and replaces them.
func FuzzFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "rates.json")
	r, err := Open(path, "model", names)
	require.NoError(f, err)
	m := machine{token: 1e-3, perPosition: 1e-7, tiers: map[string]float64{"local": 1 * GB, "remote": 10 * MB}}
	m.compute(r, 0, 8192)
	m.learn(r, "local")
	w := r.Watch(Chain{Pages: pagesOf("remote", 16)}, testAhead)
	w.GaveUp(w.Deadline())
	require.NoError(f, r.Close())
	seed, err := os.ReadFile(path)
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte(`{"version":2,"models":{"model":{"token_seconds":[[0,1],[1e300,1],[-1,1],[5,-1],[5,0],[1e12,1e6],[0,1e-300]]}}}`))
	f.Add([]byte(`{"version":2,"tiers":{"/nfs/pages":{"seen":-9223372036854775808,"tried":9223372036854775807,"page_seconds":{"whole":[[0,1e-300]]},"slow":[0,1]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "rates.json")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		r, _ := Open(path, "model", names)
		for _, tier := range []string{"local", "remote"} {
			pages := pagesOf(tier, 8)
			n := r.Plan(Chain{Pages: pages})
			require.True(t, n >= 0 && n <= len(pages))
			w := r.Watch(Chain{Pages: pages}, testAhead)
			require.GreaterOrEqual(t, w.Deadline(), time.Duration(0))
			if w.Arrived(time.Second) {
				require.GreaterOrEqual(t, w.Deadline(), time.Duration(0))
				w.GaveUp(time.Hour)
			}
			total := r.computingLocked(0, 1<<20)
			require.False(t, math.IsNaN(total) || math.IsInf(total, 0))
			if probe, limit := r.Probe(Chain{Pages: pages}, testAhead); probe > 0 {
				require.Greater(t, limit, time.Duration(0))
				r.Probed(pages[:probe], limit, false)
			}
		}
		require.NoError(t, r.Close())
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, json.Valid(kept))
		require.LessOrEqual(t, len(kept), fileBytesMax)
	})
}

// TestNames: rates without observations are not known.
func TestNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	computing, tiers, err := Names(path)
	require.NoError(t, err)
	require.Empty(t, append(computing, tiers...))
	require.NoError(t, os.WriteFile(path, []byte(`{"version":2,
		"models":{"old":{"seen":1,"token_seconds":[[0,1]]},"new":{"seen":2,"token_seconds":[[0,1]]},"none":{"seen":3,"token_seconds":[]}},
		"tiers":{"/ssd":{"seen":1,"page_seconds":{"whole":[[1,1]]}},"/nfs":{"seen":2,"page_seconds":{"whole":[]}}}}`), 0o600))
	computing, tiers, err = Names(path)
	require.NoError(t, err)
	require.Equal(t, [][]string{{"new", "old"}, {"/ssd"}}, [][]string{computing, tiers})
	for name, want := range map[string]bool{"old": true, "none": false, "another": false} {
		r, err := Open(path, name, nil)
		require.NoError(t, err)
		require.Equal(t, want, r.Known(), name)
	}
	require.NoError(t, os.WriteFile(path, []byte(`{`), 0o600))
	_, _, err = Names(path)
	require.ErrorContains(t, err, path)
}
