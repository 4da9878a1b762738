package llamae2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/internal/mounts"
	"github.com/kvtier/kvtier/internal/testmodel"
)

// TestAFullDisk: on a filesystem without room, answers are those of a stock server, and pages that
// were stored before come back. With room again, slots are stored again.
func TestAFullDisk(t *testing.T) {
	image := mounts.NewImage(t, "ext4", mounts.Ext4Bytes)
	c := &conversation{shape: testmodel.Shape{Arch: "qwen3"}, args: "-ub 1 -t 1", tokens: 700}
	o := c.options(t)
	stock := start(t, o)
	turns := c.hold(stock)
	stock.Kill()

	o.Root, o.Log = filepath.Join(image.Dir, "pages"), filepath.Join(t.TempDir(), "log")
	s := start(t, o)
	say := func(turn int) (cached int) {
		t.Helper()
		got := c.say(s, turns[turn].prompt, nil)
		requireSame(t, turns[turn].answer, got, 0)
		return got.Timings.Cached
	}
	empty := image.Fill(0)
	require.Zero(t, say(0))
	s.Kill()
	require.Zero(t, pages(t, o.Root))

	s = start(t, o)
	require.Zero(t, say(0))
	empty()
	require.Equal(t, turns[1].cached, say(1))
	s.Kill()
	stored := pages(t, o.Root)
	require.Positive(t, stored)

	empty = image.Fill(0)
	s = start(t, o)
	require.Equal(t, turns[2].cached, say(2))
	s.Kill()
	left := pages(t, o.Root)
	require.LessOrEqual(t, left, stored)

	empty()
	s = start(t, o)
	require.Positive(t, say(2)) // the store may have evicted its last page to make room
	s.Kill()
	require.Greater(t, pages(t, o.Root), left)
}
