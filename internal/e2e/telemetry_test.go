//go:build unix

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/ollamatest"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
	"github.com/kvtier/kvtier/telemetry/show"
)

// told is the state of a server's directory, once it has heard of a number
// of prompts and of the causes of all misses among the latest.
func (s *server) told(prompts float64) telemetry.State {
	s.t.Helper()
	ctx := s.context()
	for {
		state, err := collect.Read(ctx, s.root)
		if err == nil && state.Live && total(state, "ollama_kv_prompts_total") >= prompts {
			require.Equal(s.t, prompts, total(state, "ollama_kv_prompts_total"))
			return state
		}
		require.NoError(s.t, ctx.Err(), "%v of %v prompts: %v", total(state, "ollama_kv_prompts_total"), prompts, err)
		runtime.Gosched()
	}
}

// total is the sum of a series over all models.
func total(state telemetry.State, name string, labels ...string) (sum float64) {
	for _, m := range state.Models {
		sum += m.Totals[telemetry.Series(name, labels...)]
	}
	return sum
}

// sources are the tokens of all prompts by the places that they came from.
func sources(state telemetry.State) map[string]float64 {
	of := make(map[string]float64)
	for _, place := range []string{"slot", "ram", "local", "remote", "shifted", "computed"} {
		if n := total(state, "ollama_kv_prompt_tokens_total", "source", place); n > 0 {
			of[place] = n
		}
	}
	return of
}

// causes are the numbers of prompts that missed, by cause.
func causes(state telemetry.State) map[telemetry.Cause]float64 {
	of := make(map[telemetry.Cause]float64)
	for _, e := range telemetry.Causes {
		if n := total(state, "ollama_kv_misses_total", "cause", string(e.Cause)); n > 0 {
			of[e.Cause] = n
		}
	}
	return of
}

// latest is the miss of the latest prompt.
func latest(t *testing.T, state telemetry.State) telemetry.Miss {
	t.Helper()
	require.NotEmpty(t, state.Prompts)
	p := state.Prompts[len(state.Prompts)-1]
	require.NotNil(t, p.Miss, "%+v", p.Prompt)
	return *p.Miss
}

// asker asks a server, and knows the number of prompts so far.
type asker struct {
	*server
	prompts float64
}

// miss asks and returns the miss of the prompt.
func (a *asker) miss(text string, change ...func(*ollamatest.Request)) telemetry.Miss {
	a.t.Helper()
	a.ask(text, 1, change...)
	a.prompts++
	return latest(a.t, a.told(a.prompts))
}

// scrape reads the metrics on the server's own port.
func (s *server) scrape() map[string]float64 {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.context(), http.MethodGet, s.URL().JoinPath("metrics").String(), nil)
	require.NoError(s.t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(s.t, err)
	defer response.Body.Close()
	require.Equal(s.t, http.StatusOK, response.StatusCode)
	sums := make(map[string]float64)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		series, value, ok := strings.Cut(lines.Text(), "} ")
		if strings.HasPrefix(series, "#") || !ok {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		require.NoError(s.t, err, lines.Text())
		name, labels, _ := strings.Cut(series, "{")
		sums[name] += n
		for _, label := range strings.Split(labels, ",") {
			sums[name+"{"+label+"}"] += n
		}
	}
	require.NoError(s.t, lines.Err())
	return sums
}

// TestTelemetryOfAWorkload compares every number that is told of a scripted workload with the
// workload itself: by the state, in metrics, in kvtier ps and in kvtier why.
func TestTelemetryOfAWorkload(t *testing.T) {
	s := start(t, "OLLAMA_METRICS=1", "OLLAMA_KV_TIER_WARM_GB=0")
	k := buildTool(t, s.root)
	const n = 2*pageTokens + 88
	a, b := prompt(t, n, 1), prompt(t, n, 2)

	s.ask(a, 1) // new
	s.ask(a, 1) // in the slot
	s.ask(b, 1) // new, and takes the slot
	require.Equal(t, n-1, s.ask(a, 1).restored)
	state := s.told(4)
	require.Equal(t, map[string]float64{"computed": 2*n + 2, "slot": n - 1, "local": n - 1}, sources(state))
	require.Equal(t, map[telemetry.Cause]float64{telemetry.CauseNeverSeen: 2}, causes(state))
	require.Equal(t, 1.0, total(state, "ollama_kv_restores_total"))
	require.Equal(t, 3.0, total(state, "ollama_kv_page_faults_total", "tier", "local"), "two full pages and a tail")

	s.crash() // totals outlive server and runner
	require.Equal(t, n-1, s.ask(a, 1).restored)
	state = s.told(5)
	require.Equal(t, map[string]float64{"computed": 2*n + 3, "slot": n - 1, "local": 2*n - 2}, sources(state))

	metrics := s.scrape()
	require.Equal(t, 5.0, metrics["ollama_kv_prompts_total"])
	require.Equal(t, 2.0*n+3, metrics[`ollama_kv_prompt_tokens_total{source="computed"}`])
	require.Equal(t, 2.0*n-2, metrics[`ollama_kv_prompt_tokens_total{source="local"}`])
	require.Equal(t, 2.0, metrics[`ollama_kv_misses_total{cause="never_seen"}`])
	require.Equal(t, 2.0, metrics["ollama_kv_restore_seconds_count"])

	var ps struct {
		Processes []struct{ Slots []show.Slot }
		Models    []struct {
			Model    string
			Prompts  int64
			Restored int64 `json:"restored_tokens"`
			Pages    int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(k.run(0, "ps", "--json")), &ps))
	require.Len(t, ps.Models, 1)
	require.Contains(t, ps.Models[0].Model, model+":latest") // other tests give the weights further names
	require.EqualValues(t, 5, ps.Models[0].Prompts)
	require.EqualValues(t, 2*n-2, ps.Models[0].Restored)
	require.Equal(t, 4, ps.Models[0].Pages)
	require.Len(t, ps.Processes, 1)
	require.Equal(t, n-1, ps.Processes[0].Slots[0].Restored)
	require.Equal(t, 3, ps.Processes[0].Slots[0].Hot)
	require.Contains(t, k.run(0, "ps"), model+":latest")
}

// TestCausesOfMisses plays causes one after the other on a built server, and requires that each
// is named, with its position.
func TestCausesOfMisses(t *testing.T) {
	s := asker{server: start(t, "OLLAMA_KV_TIER_WARM_GB=0")}
	k := buildTool(t, s.root)
	const n = 2*pageTokens + 88
	a := prompt(t, n, 1)
	other := int64(100)
	part := func() { // another chat takes the slot
		other++
		s.miss(prompt(t, 40, other))
	}
	require.Equal(t, telemetry.CauseNeverSeen, s.miss(a).Cause)

	head := 300
	miss := s.miss(textOf(t, a, head) + prompt(t, 200, 9))
	require.Equal(t, telemetry.CauseDiffers, miss.Cause)
	require.Equal(t, head, miss.At)

	secret := prompt(t, n, 3)
	s.miss(secret, private)
	part()
	require.Equal(t, telemetry.CausePrivate, s.miss(secret).Cause)

	part()
	s.flush()
	for _, page := range s.pages() {
		flipByte(t, page)
	}
	require.Equal(t, telemetry.CauseDamaged, s.miss(a).Cause)

	for env, want := range map[string]telemetry.Cause{
		"OLLAMA_KV_CACHE_TYPE=q8_0":      telemetry.CauseType,
		"OLLAMA_KV_TIER_NAMESPACE=other": telemetry.CauseNamespace,
		"OLLAMA_KV_TIER_PAGE_TOKENS=128": telemetry.CausePageSize,
	} {
		s.flush()
		require.NoError(t, s.Close())
		s.server = startIn(t, s.root, env, "OLLAMA_KV_TIER_WARM_GB=0", "OLLAMA_FLASH_ATTENTION=1")
		require.Equal(t, want, s.miss(a).Cause, env)
	}

	part()
	s.flush()
	k.run(0, "rm", model)
	s.ask(prompt(t, 40, 200), 1)
	s.prompts++
	s.told(s.prompts) // prompts up to the report after rm do not come back
	miss = s.miss(a)
	require.Equal(t, telemetry.CauseEvicted, miss.Cause)
	require.Equal(t, "local", miss.From)
	require.WithinDuration(t, time.Now(), miss.When, timeout)
}

// textOf is the beginning of a prompt's text, n tokens of it.
func textOf(t *testing.T, text string, n int) string {
	t.Helper()
	words := strings.Fields(text)
	require.GreaterOrEqual(t, len(words), n)
	return " " + strings.Join(words[:n], " ")
}

// TestNoTextLeaves: of prompts, words are shown by kvtier why to the server's user alone.
func TestNoTextLeaves(t *testing.T) {
	s := start(t, "OLLAMA_METRICS=1", "OLLAMA_KV_TIER_NAMESPACE=mine", "OLLAMA_KV_TIER_WARM_GB=0")
	k := buildTool(t, s.root)
	const n = pageTokens + 60
	a := prompt(t, n, 1)
	s.ask(a, 1)
	s.ask(textOf(t, a, 280)+prompt(t, 60, 7), 1)
	secret := prompt(t, n, 3)
	s.ask(secret, 1, private)
	s.ask(textOf(t, secret, 280)+prompt(t, 60, 8), 1, private)
	s.told(4)

	words := strings.Fields(textOf(t, a, 280))
	shown := words[len(words)-3:]
	hidden := strings.Fields(textOf(t, secret, 280))
	hidden = hidden[len(hidden)-3:]
	run := func(env string, args ...string) string {
		cmd := exec.Command(k.binary, append(args, "--root", s.root, "--models", shared.models)...)
		cmd.Env = append(os.Environ(), env)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	own := run("OLLAMA_KV_TIER_NAMESPACE=mine", "why")
	require.Contains(t, own, strings.Join(shown, " "), "the owner sees why")
	require.NotContains(t, own, strings.Join(hidden, " "), "never of a private request")
	require.NotContains(t, run("OLLAMA_KV_TIER_NAMESPACE=", "why"), strings.Join(shown, " "), "another namespace")
	require.NotContains(t, run("OLLAMA_KV_TIER_NAMESPACE=mine", "ps", "--json"), shown[0]+" "+shown[1])

	for _, path := range filesBelow(t, filepath.Join(s.root, "telemetry")) {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a report that was replaced meanwhile
		}
		require.NoError(t, err)
		require.NotContains(t, string(data), shown[0]+" "+shown[1], path)
		if !strings.HasSuffix(path, ".words") {
			require.NotContains(t, string(data), "words", path)
			continue
		}
		info, err := os.Lstat(path)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode(), path)
	}
	response, err := http.Get(s.URL().JoinPath("metrics").String())
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	for _, word := range slices.Concat(shown, hidden) {
		require.NotContains(t, string(text), " "+word+" ")
	}
	t.Run("another user", func(t *testing.T) {
		if os.Getuid() != 0 {
			t.Skip("only root can be another user")
		}
		cmd := exec.Command(k.binary, "why", "--root", s.root)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Dir = "/"
		require.NoError(t, os.Chmod(filepath.Dir(k.binary), 0o755))
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.NotContains(t, string(out), shown[0]+" "+shown[1])
	})
}

// filesBelow lists the regular files of a directory.
func filesBelow(t *testing.T, dir string) (paths []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if e.Type().IsRegular() {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	require.NotEmpty(t, paths, fmt.Sprint(entries))
	return paths
}

// TestTelemetryOfDemotions counts pages that move between tiers, against the files there.
func TestTelemetryOfDemotions(t *testing.T) {
	remote := remoteDir(t)
	s := start(t, "OLLAMA_KV_TIER_REMOTE="+remote, "OLLAMA_KV_TIER_LOCAL_GB=0.004", "OLLAMA_KV_TIER_WARM_GB=0")
	const n = 2*pageTokens + 60
	for i := range 6 { // 0.9 MB each
		s.ask(prompt(t, n, int64(i+1)), 1)
	}
	s.flush()
	moved := func(state telemetry.State, from, to string) float64 {
		return total(state, "ollama_kv_page_moves_total", "from", from, "to", to)
	}
	ctx := s.context()
	for {
		state := s.told(6)
		there := float64(len(files(t, filepath.Join(remote, "v1"), ".kvp")))
		if there > 0 && moved(state, "local", "remote") == there {
			require.Equal(t, moved(state, "slot", "local")-there, float64(len(s.pages())), "the rest is here")
			require.Zero(t, moved(state, "local", "none"))
			break
		}
		require.NoError(t, ctx.Err(), "%v moved, %v are there", moved(state, "local", "remote"), there)
	}
	restored := s.ask(prompt(t, n, 1), 1).restored
	require.Equal(t, n-1, restored)
	state := s.told(7)
	require.Positive(t, sources(state)["remote"])
	require.Equal(t, float64(restored), sources(state)["remote"]+sources(state)["local"])
	require.Positive(t, total(state, "ollama_kv_page_faults_total", "tier", "remote"))
	for _, tier := range state.Tiers {
		if tier.Name == "local" {
			require.EqualValues(t, 4e6, tier.Budget)
			require.LessOrEqual(t, tier.Booked, tier.Budget)
		}
	}
}

// TestCauseOfAnotherImage: the text is the same, and the image in it is not.
func TestCauseOfAnotherImage(t *testing.T) {
	m := modelServer{start(t, "OLLAMA_NEW_ENGINE=1", "OLLAMA_NUM_PARALLEL=1", "OLLAMA_KV_TIER_WARM_GB=0")}
	b := m.load(t, "gemma3-vision")
	text := b.prompt(300, 1) + imageTag + b.prompt(110, 2)
	b.turn(text, 1, picture(t, 1))
	b.turn(text, 1, picture(t, 2))
	miss := latest(t, m.told(2))
	require.Equal(t, telemetry.CauseImage, miss.Cause)
	require.InDelta(t, 300, miss.At, 2, "the first token of the image")
}

// TestCauseOfAShift: text that follows from a shifted context is not stored.
func TestCauseOfAShift(t *testing.T) {
	const context, kept, first = 512, 4, 400
	const left = kept + (context-kept)/2 // where the text behind the kept tokens goes on
	s := start(t, "OLLAMA_KV_TIER_WARM_GB=0")
	small := func(r *ollamatest.Request) { r.Options["num_ctx"], r.Options["num_keep"] = context, kept }
	text := prompt(t, first, 1)
	words := strings.Fields(text)
	s.ask(text, context-first+40, small) // shifts in the middle of the answer
	next := textOf(t, text, kept) + " " + strings.Join(words[left:], " ") + prompt(t, 200, 2)
	s.ask(next, 1, small) // goes on with the turned rows
	s.ask(prompt(t, 60, 3), 1, small)
	s.ask(next, 1, small)
	state := s.told(4)
	require.Equal(t, telemetry.CauseShift, latest(t, state).Cause, "%+v", state.Prompts)
}
