package llamae2e

import (
	"bufio"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/llamatest"
	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/collect"
)

// told is the state that the daemons of a directory tell, once they have told of some prompts.
func told(t *testing.T, root string, prompts float64) (state telemetry.State) {
	t.Helper()
	total := func() float64 { return state.Models[0].Totals["ollama_kv_prompts_total"] }
	require.Eventually(t, func() bool { // now and then: a reader holds locks
		var err error
		state, err = collect.Read(t.Context(), root)
		return err == nil && state.Live && len(state.Models) == 1 && total() >= prompts
	}, startMax, 10*time.Millisecond, "%+v", &state)
	require.Equal(t, prompts, total())
	return state
}

// TestTelemetry compares the account of the daemon with the answers of llama-server, over the end
// of the daemon, and reads it on the listener of the daemon that collects.
func TestTelemetry(t *testing.T) {
	port, err := llamatest.FreePort()
	require.NoError(t, err)
	addr := fmt.Sprintf("127.0.0.1:%d", port)

	o := conversations[0].options(t)
	o.Root = filepath.Join(t.TempDir(), "pages")
	o.Env = append(o.Env, "OLLAMA_KV_METRICS_ADDR="+addr)
	s := start(t, o)
	prompt := someTokens(1, 700)
	cached, computed := 0, 0
	ask := func(tokens []int32) {
		a := s.complete(tokens, 3)
		cached, computed = cached+a.Timings.Cached, computed+a.Timings.Computed
	}
	ask(prompt)                                         // new
	ask(append(prompt[:690:690], someTokens(2, 60)...)) // parts from it
	ask(someTokens(3, 300))                             // takes the slot
	s.Kill()                                            // the slots are stored
	s = start(t, o)
	ask(prompt)

	state := told(t, o.Root, 4)
	m := state.Models[0]
	require.Equal(t, telemetry.EngineLlama, m.Engine)
	source := func(place string) int {
		return int(m.Totals[telemetry.Series("ollama_kv_prompt_tokens_total", "source", place)])
	}
	require.Equal(t, computed, source("computed"))
	require.Equal(t, cached, source("slot")+source("local"))
	require.Greater(t, source("local"), 500)
	require.Equal(t, 1.0, m.Totals["ollama_kv_restores_total"])
	require.Positive(t, m.Totals[`ollama_kv_sealed_pages_total{kind="page"}`])
	require.Equal(t, 1.0, m.Totals[`ollama_kv_misses_total{cause="token_differs"}`])
	require.Equal(t, 2.0, m.Totals[`ollama_kv_misses_total{cause="never_seen"}`])
	for _, p := range state.Prompts {
		require.Equal(t, p.Tokens, p.Slot+p.Local+p.Computed, "%+v", p.Prompt)
	}
	require.Len(t, state.Processes, 1)
	require.Len(t, state.Processes[0].Slots, 1)
	require.Equal(t, o.Root, state.Tiers[0].Root)

	var res *http.Response
	require.Eventually(t, func() bool { // the daemon listens soon after it reports
		var err error
		res, err = http.Get("http://" + addr + "/metrics")
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	found := false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		found = found || strings.HasPrefix(lines.Text(), "ollama_kv_prompts_total{") && strings.HasSuffix(lines.Text(), fmt.Sprint("} ", 4))
	}
	require.True(t, found)
}

// TestTheBudgetsOfASplitAreInForce: the budget that is told is the one to which the daemon evicts.
func TestTheBudgetsOfASplitAreInForce(t *testing.T) {
	o := conversations[0].options(t)
	o.Root = filepath.Join(t.TempDir(), "pages")
	o.Env = append(o.Env, "OLLAMA_KV_TIER_SPLIT=75,0,25")
	s := start(t, o)
	for i := range int32(4) { // together more than the quarter of the context
		s.complete(someTokens(int(i), 700), 3)
	}
	s.Kill() // the slot is stored
	s = start(t, o)
	s.complete(someTokens(9, 300), 3)

	state := told(t, o.Root, 5)
	local := state.Tiers[slices.IndexFunc(state.Tiers, func(t telemetry.Tier) bool { return t.Name == "local" })]
	token := state.Models[0].Model.TokenBytes
	require.Equal(t, token*4096/4, local.Budget)
	var held int64
	eachPage(t, o.Root, func(path string) error {
		var st syscall.Stat_t
		err := syscall.Stat(path, &st)
		held += st.Blocks * 512
		return err
	})
	require.LessOrEqual(t, held, local.Budget)
	require.Greater(t, held, local.Budget/2, "less than two conversations are left")
	require.Positive(t, state.Models[0].Totals[telemetry.Series("ollama_kv_page_moves_total", "from", "local", "to", "none")])
}
