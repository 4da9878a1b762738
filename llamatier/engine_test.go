package llamatier

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/llamastate"
)

// seenBy is the saved slot of a prompt: each image has a token of its own before and behind its media, and
// some have several media.
func seenBy(before []int32, parts []Part, media map[string]int) (*llamastate.File, int) {
	f := &llamastate.File{Tokens: slices.Clone(before)}
	for _, part := range parts {
		f.Tokens = append(f.Tokens, 1001)
		for n := range media[part.ID] {
			if n > 0 {
				f.Tokens = append(f.Tokens, 1002)
			}
			f.Media = append(f.Media, llamastate.Medium{Start: len(f.Tokens), Tokens: 5, ID: part.ID, Chunk: []byte{byte(n)}})
			f.Tokens = append(f.Tokens, slices.Repeat([]int32{llamastate.MediaToken}, 5)...)
		}
		f.Tokens = append(append(f.Tokens, 1003), part.Tokens...)
	}
	prompt := len(f.Tokens)
	f.Tokens = append(f.Tokens, 7, 8, 9) // the answer
	return f, prompt
}

// TestAlbum: what llama-server makes of images is learned from a saved slot, also for later runs. A prompt
// has the slot's numbers then.
func TestAlbum(t *testing.T) {
	cat, dog := strings.Repeat("ca", 32), strings.Repeat("d0", 32)
	before := []int32{1, 2, 3}
	media := map[string]int{cat: 1, dog: 3}
	for name, parts := range map[string][]Part{
		"one":          {{ID: cat, Tokens: []int32{4, 5}}},
		"no text":      {{ID: cat}},
		"several":      {{ID: cat, Tokens: []int32{4, 5}}, {ID: dog, Tokens: []int32{6}}, {ID: cat, Tokens: []int32{4}}},
		"side by side": {{ID: cat}, {ID: cat}, {ID: dog}, {ID: dog}, {ID: cat, Tokens: []int32{4}}},
	} {
		path := filepath.Join(t.TempDir(), "media.json")
		a := newAlbum("projector", path, slog.Default())
		r := a.expand(Request{Tokens: before, Parts: parts})
		require.Equal(t, before, r.Tokens, name)
		require.NotEmpty(t, r.Rest, "nothing is known")

		state, prompt := seenBy(before, parts, media)
		a.read(state)
		require.False(t, state.Cut)
		require.True(t, a.learn(state, len(before), 0, parts, prompt), name)
		require.NoError(t, a.keep())
		for _, of := range []*album{a, newAlbum("projector", path, slog.Default())} {
			r = of.expand(Request{Tokens: before, Parts: parts})
			require.Empty(t, r.Rest, name)
			require.Equal(t, state.Tokens[:prompt], r.Tokens, name)
			require.Equal(t, state.Media, r.media, name)
			more := append(slices.Clone(parts), Part{ID: strings.Repeat("aa", 32), Stands: 5, Tokens: []int32{6}})
			r = of.expand(Request{Tokens: before, Parts: more})
			require.Equal(t, state.Tokens[:prompt], r.Tokens, "%s: up to the image that is not known", name)
			require.Len(t, r.Rest, mediaTokens+1)
		}
		r = newAlbum("another projector", path, slog.Default()).expand(Request{Tokens: before, Parts: parts})
		require.Equal(t, before, r.Tokens, "rows are those of one projector")

		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NotContains(t, string(text), cat, "the file names no image")
		require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "1001", "1004")), 0o600))
		r = newAlbum("projector", path, slog.Default()).expand(Request{Tokens: before, Parts: parts})
		require.Equal(t, before, r.Tokens, "a damaged file tells nothing")
	}
}

// TestAlbumLearnsNothingWrong: a slot that is not the prompt's teaches nothing.
func TestAlbumLearnsNothingWrong(t *testing.T) {
	cat, dog := strings.Repeat("ca", 32), strings.Repeat("d0", 32)
	before := []int32{1, 2, 3}
	parts := []Part{{ID: cat, Tokens: []int32{4, 5}}, {ID: dog, Tokens: []int32{6}}}
	for name, c := range map[string]struct {
		slot   []Part
		longer int
	}{
		"another image":     {[]Part{{ID: cat, Tokens: []int32{4, 5}}, {ID: cat, Tokens: []int32{6}}}, 0},
		"another order":     {[]Part{{ID: dog, Tokens: []int32{4, 5}}, {ID: cat, Tokens: []int32{6}}}, 0},
		"another text":      {[]Part{{ID: cat, Tokens: []int32{4, 6}}, {ID: dog, Tokens: []int32{6}}}, 0},
		"another last text": {[]Part{{ID: cat, Tokens: []int32{4, 5}}, {ID: dog, Tokens: []int32{7}}}, 0},
		"an image less":     {parts[:1], 0},
		"an image more":     {append(slices.Clone(parts), Part{ID: cat, Tokens: []int32{6}}), 0},
		"another length":    {parts, 1},
		"too long":          {parts, 100},
	} {
		a := newAlbum("projector", "", slog.Default())
		state, prompt := seenBy(before, c.slot, map[string]int{cat: 1, dog: 2})
		a.read(state)
		require.False(t, a.learn(state, len(before), 0, parts, prompt+c.longer), name)
		require.Equal(t, before, a.expand(Request{Tokens: before, Parts: parts}).Tokens, name)
	}
	off := newAlbum("", "", slog.Default())
	state, _ := seenBy(before, parts, map[string]int{cat: 1, dog: 2})
	off.read(state)
	require.True(t, state.Cut)
	require.Equal(t, append(slices.Clone(before), 1001), state.Tokens, "without a projector no image is stored")

	a := newAlbum("projector", "", slog.Default())
	for i := range albumMax + 10 {
		a.addLocked(a.name(cat, i), shown{})
	}
	require.Len(t, a.shown, albumMax)
	_, known := a.look(cat, 9)
	require.False(t, known, "the oldest went")
	_, known = a.look(cat, 10)
	require.True(t, known)
}

// TestAlbumOfAnother: a file that somebody wrote ends no daemon.
func TestAlbumOfAnother(t *testing.T) {
	cat := strings.Repeat("ca", 32)
	five := []int32{-1, -1, -1, -1, -1}
	for name, s := range map[string]shown{
		"before":  {Tokens: five, Media: []llamastate.Medium{{Start: -1, Tokens: 5}}},
		"behind":  {Tokens: five, Media: []llamastate.Medium{{Start: 1, Tokens: 5}}},
		"huge":    {Tokens: five, Media: []llamastate.Medium{{Start: 0, Tokens: 1 << 40}}},
		"overlap": {Tokens: five, Media: []llamastate.Medium{{Start: 0, Tokens: 5}, {Start: 0, Tokens: 5}}},
		"id":      {Tokens: five, Media: []llamastate.Medium{{Start: 0, Tokens: 5, IDAt: 7}}},
		"few":     {Tokens: five, Media: []llamastate.Medium{{Start: 0, Tokens: 1}}},
	} {
		path := filepath.Join(t.TempDir(), "media.json")
		a := newAlbum("projector", path, slog.Default())
		n := a.name(cat, 0)
		s.Sum = s.sum(n)
		b, err := json.Marshal(map[string]shown{n: s})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		r := newAlbum("projector", path, slog.Default()).expand(Request{Tokens: []int32{1}, Parts: []Part{{ID: cat}}})
		require.Equal(t, []int32{1}, r.Tokens, name)
	}
}

// TestReadGenerated: numbers are printed with six digits, and the bounds hold the true number.
func TestReadGenerated(t *testing.T) {
	for _, n := range []int{0, 7, 99_999, 999_999, 1_000_000, 1_000_004, 1_234_565, 9_999_994, 9_999_996, 12_345_678, 987_654_321_012} {
		least, most, err := readGenerated(fmt.Appendf(nil, "# TYPE x counter\nllamacpp:tokens_predicted_total %.6g\nllamacpp:x 5\n", float64(n)))
		require.NoError(t, err)
		require.LessOrEqual(t, least, n)
		require.GreaterOrEqual(t, most, n)
		require.LessOrEqual(t, most-least, n/100_000+1)
		if n < 1_000_000 {
			require.Equal(t, least, most)
		}
	}
	for _, text := range []string{"", "nan", "-1", "1e+99", "1e+400", "99999999999999999999", "1.5", "1e-5", "inf", "5 6"} {
		_, _, err := readGenerated([]byte("llamacpp:tokens_predicted_total " + text + "\n"))
		require.Error(t, err, text)
	}
}

// TestMetricsOfClients are not read: each reading begins new averages.
func TestMetricsOfClients(t *testing.T) {
	e := &Engine{MetricsOfClients: true} // without a client a question would panic
	_, _, err := e.Generated(t.Context())
	require.ErrorIs(t, err, errUncounted)
}
