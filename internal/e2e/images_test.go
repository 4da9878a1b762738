package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// restoredImages are the models whose conversations are restored with images.
var restoredImages = []string{"gemma3-vision", "gemma4-vision", "mistral3"}

// TestImagesComeBackByContent: an image is found again in another process, and another image
// of the same size is not. Tokens after the image have the same bits as in a conversation
// that was never evicted.
func TestImagesComeBackByContent(t *testing.T) {
	plain, tiered := besideStock(t)
	for _, arch := range restoredImages {
		t.Run(arch, func(t *testing.T) {
			a, b := plain.load(t, arch), tiered.load(t, arch)
			const before, after = 300, 110 // the text before the image fills a page
			first := a.prompt(before, 1) + imageTag + a.prompt(after, 2)
			second := first + a.prompt(20, 3)

			a.turn(first, 1, picture(t, 1))
			want := a.turn(second, archAnswer, picture(t, 1))

			b.turn(first, 1, picture(t, 1))
			b.crash()
			got := b.turn(second, archAnswer, picture(t, 1))
			require.Greater(t, got.restored, before+after, "the image's own tokens, too")
			requireSame(t, want, got, "an image and the text after it, after kill -9")

			// only the text before the image is shared, and the image is not cut
			b.crash()
			other := b.turn(second, archAnswer, picture(t, 2))
			require.Positive(t, other.restored)
			require.LessOrEqual(t, other.restored, before+1, "rows of another image of the same size")
			a.unload()
			a.turn(a.prompt(before, 1), 1)
			wantOther := a.turn(second, archAnswer, picture(t, 2))
			requireSame(t, wantOther, other, "as after a slot that holds the text before the image")

			// both images are stored now
			b.crash()
			again := b.turn(second, archAnswer, picture(t, 2))
			require.Greater(t, again.restored, before+after)
			requireClose(t, other, again, soakBound)
		})
	}
}

// TestTextBehindAnImage: in gemma3 and gemma4 the rows of an image attend to the text behind it in
// its batch. They come back for that text. For other text they are computed, as by a stock server
// that holds the text before the image.
func TestTextBehindAnImage(t *testing.T) {
	plain, tiered := besideStock(t)
	for _, arch := range []string{"gemma3-vision", "gemma4-vision"} {
		t.Run(arch, func(t *testing.T) {
			a, b := plain.load(t, arch), tiered.load(t, arch)
			const before, after = 300, 110
			history := a.prompt(before, 1)
			text := func(seed int64) string { return history + imageTag + a.prompt(after, seed) }
			next := func(seed int64) string { return text(seed) + a.prompt(20, 3) }
			heldBefore := func() { // the stock server holds the text before the image
				a.unload()
				a.turn(history, 1)
			}
			b.turn(text(2), 1, picture(t, 1))
			b.crash()
			got := b.turn(text(4), archAnswer, picture(t, 1))
			require.Positive(t, got.restored)
			require.LessOrEqual(t, got.restored, before+1, "rows that attended to other text")
			heldBefore()
			requireSame(t, a.turn(text(4), archAnswer, picture(t, 1)), got, "other text behind the image")

			// the rows of both are stored now
			for _, seed := range []int64{2, 4} {
				b.crash()
				got := b.turn(next(seed), archAnswer, picture(t, 1))
				require.Greater(t, got.restored, before+after, "text %d", seed)
				if seed == 2 {
					a.unload()
				} else {
					heldBefore()
				}
				a.turn(text(seed), 1, picture(t, 1))
				requireClose(t, a.turn(next(seed), archAnswer, picture(t, 1)), got, soakBound)
			}
		})
	}
}

// TestImagesThatReachBackwards: in mllama, text attends to a later image of the same batch.
// Such rows are never used for a prompt without the image.
func TestImagesThatReachBackwards(t *testing.T) {
	plain, tiered := besideStock(t)
	a, m := plain.load(t, "mllama"), tiered.load(t, "mllama")
	text := m.prompt(200, 1)
	want := a.turn(text+m.prompt(20, 3), archAnswer)

	m.turn(text+imageTag+m.prompt(20, 2), 1, picture(t, 1))
	m.crash()
	got := m.turn(text+m.prompt(20, 3), archAnswer)
	require.Zero(t, got.restored)
	requireSame(t, want, got, "text that was before an image in another prompt")
}
