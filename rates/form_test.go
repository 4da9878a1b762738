package rates

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// formed is a chain of pages of testPageBytes of rows each, in the forms given.
func formed(tier string, list ...Form) []Page {
	pages := pagesOf(tier, len(list))
	for i, form := range list {
		pages[i].Form = form
		pages[i].Bytes = testPageBytes * 10 / map[Form]int64{Whole: 10, Packed: 12, Half: 19, Quarter: 36}[form]
	}
	return pages
}

// repeat returns n times a form.
func repeat(n int, form Form) []Form { return slices.Repeat([]Form{form}, n) }

// read follows a restore of pages that each take a time.
func read(r *Rates, took func(Page) float64, pages []Page) {
	w, at := r.Watch(Chain{Pages: pages}, testAhead), 0.0
	for _, page := range pages {
		at += took(page)
		w.Arrived(seconds(at))
	}
}

func TestFormOf(t *testing.T) {
	for ratio, want := range map[float64]Form{0.99: Whole, 1: Whole, 1.02: Packed, 1.18: Packed, 1.53: Packed, 1.88: Half, 2.2: Half, 3.5: Quarter, 100: Quarter} {
		require.Equal(t, want, FormOf(1e6, int64(ratio*1e6)), "%v", ratio)
	}
	require.Equal(t, Whole, FormOf(0, 0))
}

// TestDecodingIsInThePrice: on a disk of 4 GB/s packed pages are decoded at 0.5 GB/s of rows. Pages
// of either form are read only where that is quicker than computing, whichever was read last.
func TestDecodingIsInThePrice(t *testing.T) {
	took := func(page Page) float64 {
		disk := float64(page.Bytes) / (4 * GB)
		if page.Form == Whole {
			return disk
		}
		return max(disk, testPageBytes/(0.5*GB))
	}
	const between = testPageBytes / (1 * GB) / testPageTokens // seconds of a token
	r := newRates(newClock())
	for range 4 {
		read(r, took, formed("local", repeat(8, Packed)...))
		read(r, took, formed("local", repeat(8, Whole)...))
	}
	machine{token: between}.compute(r, 0, 8192)
	require.Equal(t, 16, r.Plan(Chain{Pages: formed("local", repeat(16, Whole)...)}))
	require.Zero(t, r.Plan(Chain{Pages: formed("local", repeat(16, Packed)...)}))
	require.Equal(t, 8, r.Plan(Chain{Pages: formed("local", append(repeat(8, Whole), repeat(8, Packed)...)...)}))

	packed, whole := formed("local", Packed)[0], formed("local", Whole)[0]
	require.InEpsilon(t, took(packed), r.Reading(packed).Seconds(), 0.01)
	require.InEpsilon(t, took(whole), r.Reading(whole).Seconds(), 0.01)
	require.InEpsilon(t, took(packed), r.Apart().Reading(packed).Seconds(), 0.01)
}

// TestOneRestoreTeachesBothForms: a chain that became packed half way.
func TestOneRestoreTeachesBothForms(t *testing.T) {
	took := func(page Page) float64 { return float64(page.Bytes) / (1 * GB) * float64(1+5*page.Form) }
	r := newRates(newClock())
	read(r, took, formed("local", append(repeat(8, Whole), repeat(8, Quarter)...)...))
	for _, form := range []Form{Whole, Quarter} {
		page := formed("local", form)[0]
		require.InEpsilon(t, took(page), r.Reading(page).Seconds(), 0.01, "%v", form)
	}
}

// TestANewFormCostsAsWholePagesAtFirst: its bytes are read from the same disk.
func TestANewFormCostsAsWholePagesAtFirst(t *testing.T) {
	m := machine{token: 1e-3, tiers: map[string]float64{"slow": 1 * MB}}
	r := m.known(newClock(), 4096, "slow")
	require.Zero(t, r.Plan(Chain{Pages: formed("slow", repeat(4, Half)...)}))

	r = newRates(newClock())
	read(r, func(Page) float64 { return 1000 }, formed("local", Packed))
	m.compute(r, 0, 4096)
	require.Equal(t, 1, r.Plan(Chain{Pages: formed("local", Whole)}), "not observed: it is tried")
}

func TestFormsOutliveTheProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rates.json")
	took := func(page Page) float64 { return float64(1 + page.Form) }
	r := open(t, path, "model")
	for form := range forms {
		read(r, took, formed("local", repeat(4, form)...))
	}
	require.NoError(t, r.Close())
	again := open(t, path, "model")
	for form := range forms {
		page := formed("local", form)[0]
		require.InEpsilon(t, took(page), again.Reading(page).Seconds(), 0.01, "%v", form)
	}
	_, tiers, err := Names(path)
	require.NoError(t, err)
	require.Equal(t, []string{"/ssd/pages"}, tiers)
}
