package collect

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/kvtier/kvtier/telemetry"
)

// clock is a clock that tests move.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func testBooks() (*books, *clock) {
	c := &clock{at: testStart}
	return newBooks(Options{now: c.now}.withDefaults()), c
}

func (b *books) stateForTest() telemetry.State {
	return b.state("/root", func(string) string { return "" })
}

func nobodyEnded(telemetry.Process) bool    { return false }
func everybodyEnded(telemetry.Process) bool { return true }

func TestTotalsOfProcessesAreAdded(t *testing.T) {
	b, _ := testBooks()
	require.NoError(t, b.add(testReport(1, prompts(3)), 0, false))
	require.NoError(t, b.add(testReport(2, prompts(4)), 0, false))
	require.NoError(t, b.add(testReport(1, prompts(5)), 0, false))
	require.NoError(t, b.add(testReport(1, prompts(5)), 0, false), "twice")
	require.NoError(t, b.add(testReport(1, prompts(2)), 0, false), "late")
	s := b.stateForTest()
	require.Equal(t, 9.0, total(s, promptsTotal))
	require.Len(t, s.Models, 1)
	require.Len(t, s.Processes, 2)
}

// Models are apart by weights, namespace and engine.
func TestModelsAreApart(t *testing.T) {
	b, _ := testBooks()
	for i, edit := range []func(*telemetry.Report){
		func(*telemetry.Report) {}, func(r *telemetry.Report) { r.Model.Weights = "other" },
		func(r *telemetry.Report) { r.Model.Namespace = "n" }, func(r *telemetry.Report) { r.Process.Engine = telemetry.EngineLlama },
	} {
		r := testReport(i+1, prompts(1))
		edit(r)
		require.NoError(t, b.add(r, 0, false))
	}
	s := b.stateForTest()
	require.Len(t, s.Models, 4)
	for _, m := range s.Models {
		require.Equal(t, 1.0, m.Totals[promptsTotal])
	}
}

// A process that learns its weights late counts under them from then on.
func TestAProcessThatChangesItsModel(t *testing.T) {
	b, _ := testBooks()
	r := testReport(1, prompts(3))
	r.Model.Weights = ""
	require.NoError(t, b.add(r, 0, false))
	require.NoError(t, b.add(testReport(1, prompts(5)), 0, false))
	require.NoError(t, b.add(testReport(1, prompts(6)), 0, false))
	got := make(map[string]float64)
	for _, m := range b.stateForTest().Models {
		got[m.Model.Weights] = m.Totals[promptsTotal]
	}
	require.Equal(t, map[string]float64{"": 3, "w": 3}, got)
}

// A process that was silent, or said that it ended, and reports again is not counted twice.
func TestAProcessThatComesBack(t *testing.T) {
	b, c := testBooks()
	require.NoError(t, b.add(testReport(1, prompts(3)), 0, false))
	c.at = c.at.Add(time.Hour)
	b.look(nobodyEnded)
	require.Empty(t, b.stateForTest().Processes)
	require.Equal(t, 3.0, total(b.stateForTest(), promptsTotal))
	require.NoError(t, b.add(testReport(1, prompts(4)), 0, false))
	require.Len(t, b.stateForTest().Processes, 1)
	require.Equal(t, 4.0, total(b.stateForTest(), promptsTotal))

	require.NoError(t, b.add(testReport(1, prompts(5)), 0, true))
	require.Empty(t, b.stateForTest().Processes)
	require.NoError(t, b.add(testReport(1, prompts(6)), 0, false), "a report that was on its way")
	require.Empty(t, b.stateForTest().Processes)
	require.Equal(t, 6.0, total(b.stateForTest(), promptsTotal))
	later := testReport(1, prompts(7))
	later.At = later.At.Add(time.Second)
	require.NoError(t, b.add(later, 0, false))
	require.Len(t, b.stateForTest().Processes, 1)
}

// The system tells that a process has ended; its id stays for reports that are on their way.
func TestAProcessThatIsGone(t *testing.T) {
	b, c := testBooks()
	require.NoError(t, b.add(testReport(1, prompts(3)), 1, false))
	require.NoError(t, b.add(testReport(2, prompts(3)), 77, false), "in another namespace of process ids")
	b.look(everybodyEnded)
	s := b.stateForTest()
	require.Len(t, s.Processes, 1)
	require.Equal(t, 2, s.Processes[0].Process.PID)
	require.NoError(t, b.add(testReport(1, prompts(4)), 1, false))
	b.look(everybodyEnded)
	require.Equal(t, 7.0, total(b.stateForTest(), promptsTotal))
	c.at = c.at.Add(lateMax + time.Second)
	b.look(everybodyEnded)
	require.Len(t, b.processes, 1)
	require.True(t, b.dropped.IsZero(), "it cannot come back")
}

// Ids of processes that ended are bounded. One that was dropped and comes back is not counted
// twice, and a new one counts as a whole.
func TestIdsThatAreDropped(t *testing.T) {
	b, c := testBooks()
	const all = 3 * endedMax
	for pid := 1; pid <= all; pid++ {
		c.at = c.at.Add(time.Second)
		require.NoError(t, b.add(testReport(pid, prompts(2)), 0, true))
	}
	require.Len(t, b.processes, endedMax)
	require.Equal(t, 2.0*all, total(b.stateForTest(), promptsTotal))
	require.NoError(t, b.add(testReport(1, prompts(2)), 0, false))
	require.Equal(t, 2.0*all, total(b.stateForTest(), promptsTotal))
	require.NoError(t, b.add(testReport(1, prompts(3)), 0, false))
	require.Equal(t, 2.0*all+1, total(b.stateForTest(), promptsTotal))
	require.NoError(t, b.add(testReport(all+1, prompts(5)), 0, false))
	require.Equal(t, 2.0*all+6, total(b.stateForTest(), promptsTotal))
}

// Systems without /proc do not tell the start of a process: numbers come back.
func TestNumbersThatComeBack(t *testing.T) {
	b, _ := testBooks()
	for i := range 3 {
		r := testReport(1, prompts(2))
		r.Process.Boot, r.Process.Start, r.Started = "", 0, testStart.Add(time.Duration(i)*time.Hour)
		require.NoError(t, b.add(r, 0, true))
	}
	require.Equal(t, 6.0, total(b.stateForTest(), promptsTotal))
}

func TestPromptsComeOnce(t *testing.T) {
	b, _ := testBooks()
	send := func(pid int, from, to uint64) {
		r := testReport(pid, nil)
		for seq := from; seq <= to; seq++ {
			r.Prompts = append(r.Prompts, telemetry.Prompt{Seq: seq, At: testStart.Add(time.Duration(seq) * time.Second), Tokens: pid})
		}
		require.NoError(t, b.add(r, 0, false))
	}
	send(1, 1, 5)
	send(2, 1, 3)
	send(1, 3, 7)
	send(1, 3, 7)
	all := b.stateForTest().Prompts
	require.Len(t, all, 10)
	require.True(t, slices.IsSortedFunc(all, func(x, y telemetry.StatePrompt) int { return x.At.Compare(y.At) }))
	for from := uint64(8); from < 2000; from += telemetry.PromptsMax {
		send(1, from, from+telemetry.PromptsMax-1)
	}
	all = b.stateForTest().Prompts
	require.Len(t, all, telemetry.StatePromptsMax)
	seen := make(map[string]bool)
	for _, p := range all {
		key := fmt.Sprint(p.Process.PID, p.Seq)
		require.False(t, seen[key])
		seen[key] = true
	}
}

// Each directory is there once, as the latest report has it. RAM is added up.
func TestTiersAreMerged(t *testing.T) {
	b, c := testBooks()
	report := func(pid, pages int, down bool) {
		r := testReport(pid, nil)
		r.Tiers = []telemetry.Tier{
			{Name: telemetry.PlaceRAM, Pages: pages, Budget: 10}, {Name: telemetry.PlaceLocal, Root: "/a", Pages: pages, Quarantined: 1},
			{Name: telemetry.PlaceRemote, Root: "/b", Pages: pages, Down: down},
		}
		require.NoError(t, b.add(r, 0, false))
	}
	report(1, 5, true)
	report(2, 6, false)
	require.Equal(t, []telemetry.Tier{
		{Name: telemetry.PlaceRAM, Pages: 11, Budget: 20}, {Name: telemetry.PlaceLocal, Root: "/a", Pages: 6, Quarantined: 2},
		{Name: telemetry.PlaceRemote, Root: "/b", Pages: 6, Down: true},
	}, b.stateForTest().Tiers)
	c.at = c.at.Add(time.Hour)
	b.look(nobodyEnded)
	require.Equal(t, []telemetry.Tier{
		{Name: telemetry.PlaceLocal, Root: "/a", Pages: 6}, {Name: telemetry.PlaceRemote, Root: "/b", Pages: 6},
	}, b.stateForTest().Tiers, "directories stay")
	for i := range 10 * directoriesMax {
		r := testReport(3, nil)
		r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: fmt.Sprint(i)}}
		require.NoError(t, b.add(r, 0, false))
	}
	require.Len(t, b.stateForTest().Tiers, directoriesMax)
}

// Names are known to some processes only.
func TestNamesOfModels(t *testing.T) {
	b, _ := testBooks()
	r := testReport(1, nil)
	r.Model.Name = "llama"
	require.NoError(t, b.add(r, 0, false))
	r = testReport(2, nil)
	r.Process.Engine = telemetry.EngineLlama
	require.NoError(t, b.add(r, 0, false))
	r = testReport(3, nil)
	r.Model.Weights = "x"
	require.NoError(t, b.add(r, 0, false))
	s := b.state("/", func(weights string) string { return "asked " + weights })
	for _, m := range s.Models {
		require.Equal(t, map[string]string{"w": "llama", "x": "asked x"}[m.Model.Weights], m.Model.Name)
	}
	require.Equal(t, "llama", s.Processes[1].Model.Name)
}

// The clock goes forward and back by years: nothing falls, nothing is counted twice, and no
// time of the state is after its own.
func TestClockJumps(t *testing.T) {
	b, c := testBooks()
	want := 0.0
	for i := range 200 {
		c.at = testStart.Add(time.Duration(rand.IntN(100)-50) * 24 * 365 * time.Hour / 10)
		want++
		require.NoError(t, b.add(testReport(1, prompts(float64(i+1))), 0, false))
		b.look(nobodyEnded)
		s := b.stateForTest()
		require.Equal(t, want, total(s, promptsTotal))
		require.False(t, s.Since.After(s.At))
		require.False(t, s.Models[0].LastUsed.After(s.At))
	}
}

// largest is a report as large as the bounds allow.
func largest(pid int) *telemetry.Report {
	long := strings.Repeat(`"`, telemetry.NameBytesMax)
	r := testReport(pid, map[string]float64{})
	r.Model = telemetry.Model{Weights: strings.Repeat("w", weightsBytesMax-5) + fmt.Sprint(pid), Name: long, Architecture: long, Fingerprint: long, Namespace: long, CacheType: long}
	for i := range telemetry.SeriesMax {
		value := fmt.Sprint(i) + strings.Repeat(`"`, valueBytesMax-5)
		r.Totals[telemetry.Series("ollama_kv_misses_total", "cause", value)] = 1e17 / 3
		r.Gauges[telemetry.Series("ollama_kv_tier_pages", "tier", value)] = -1e17 / 3
	}
	for range telemetry.SlotsMax {
		r.Slots = append(r.Slots, telemetry.Slot{ID: 1 << 40, Tokens: 1 << 40, LastRestore: testStart})
	}
	words := &telemetry.Words{Was: slices.Repeat([]int32{-1 << 31}, telemetry.WordsMax), Is: slices.Repeat([]int32{-1 << 31}, telemetry.WordsMax)}
	for i := range telemetry.PromptsMax {
		r.Prompts = append(r.Prompts, telemetry.Prompt{Seq: uint64(i + 1), At: testStart, Tokens: 1 << 40, Miss: &telemetry.Miss{
			Cause: telemetry.CauseDiffers, Detail: long, Words: words}})
	}
	for i := range tiersMax {
		r.Tiers = append(r.Tiers, telemetry.Tier{Name: telemetry.PlaceLocal, Root: fmt.Sprint(pid, i) + long[:400]})
	}
	return r
}

// A flood of the largest reports of many models and processes stays within all bounds.
func TestBoundsOfAFlood(t *testing.T) {
	b, _ := testBooks()
	refused := 0
	one := largest(1)
	require.NoError(t, checkReport(one))
	for pid := 1; pid <= telemetry.ProcessesMax+50; pid++ {
		r := *one
		r.Process, r.Started = testProcess(pid), testStart.Add(time.Duration(pid)*time.Second)
		r.Model.Weights = one.Model.Weights[10:] + fmt.Sprintf("%10d", pid)
		r.Tiers = []telemetry.Tier{{Name: telemetry.PlaceLocal, Root: fmt.Sprint(pid) + one.Tiers[0].Root[:400]}}
		if err := b.add(&r, 0, false); err != nil {
			require.ErrorIs(t, err, errFull)
			refused++
		}
	}
	require.Equal(t, 50, refused)
	s := b.stateForTest()
	require.Len(t, s.Models, telemetry.ModelsMax)
	require.Len(t, s.Processes, telemetry.ProcessesMax)
	require.Len(t, s.Prompts, telemetry.StatePromptsMax)
	require.LessOrEqual(t, b.details, detailBytesMax)
	require.Empty(t, s.Models[slices.IndexFunc(s.Models, func(m telemetry.ModelState) bool { return m.Engine == "" })].Model.Weights)
	data, err := encode(s)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), telemetry.StateBytesMax, "nothing has to be left out")
	f, _ := b.file()
	data, err = encode(f)
	require.NoError(t, err)
	require.LessOrEqual(t, len(data), fileBytesMax)
	again, _ := testBooks()
	require.NoError(t, again.fill(data, ""), "its own file is within the bounds of the file")
	require.Equal(t, s.Models, again.stateForTest().Models)
}

// A sum never becomes infinite, which JSON does not have.
func TestSumsStayFinite(t *testing.T) {
	b, _ := testBooks()
	b.modelLocked(testReport(1, nil)).place(promptsTotal)
	b.models[0].totals[0] = sumMax
	require.NoError(t, b.add(testReport(1, prompts(totalMax)), 0, false))
	_, err := json.Marshal(b.stateForTest())
	require.NoError(t, err)
	require.Equal(t, sumMax, b.models[0].totals[0])
}

// TestRandomHistories compares the books with sums that remember everything: reports in any
// order, processes that fall silent, end and come back, and collectors that begin anew from the
// file of any moment after the last state that was shown.
func TestRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b, c := testBooks()
		file, _ := b.file()
		most := make(map[int]float64) // the total that each process has reported
		sent := make(map[int]float64) // its own total
		shown := 0.0
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			pid := rapid.IntRange(1, 6).Draw(rt, "pid")
			switch rapid.SampledFrom(strings.Fields("report report report late last silent show kill")).Draw(rt, "step") {
			case "report":
				sent[pid] += float64(rapid.IntRange(0, 3).Draw(rt, "n"))
				require.NoError(rt, b.add(testReport(pid, prompts(sent[pid])), pid, false))
				most[pid] = sent[pid]
			case "late":
				require.NoError(rt, b.add(testReport(pid, prompts(most[pid]/2)), pid, false))
			case "last":
				require.NoError(rt, b.add(testReport(pid, prompts(sent[pid])), pid, true))
				most[pid] = sent[pid]
			case "silent":
				c.at = c.at.Add(time.Minute)
				b.look(nobodyEnded)
			case "show":
				file, _ = b.file()
				shown = total(b.stateForTest(), promptsTotal)
			case "kill":
				data, err := encode(file)
				require.NoError(rt, err)
				b, c = testBooks()
				require.NoError(rt, b.fill(data, "b"))
				require.Equal(rt, shown, total(b.stateForTest(), promptsTotal))
				for pid := range most { // the living report again
					require.NoError(rt, b.add(testReport(pid, prompts(sent[pid])), pid, false))
					most[pid] = sent[pid]
				}
			}
			want := 0.0
			for _, n := range most {
				want += n
			}
			require.Equal(rt, want, total(b.stateForTest(), promptsTotal))
		}
	})
}
