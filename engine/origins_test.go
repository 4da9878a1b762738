package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore"
	"github.com/kvtier/kvtier/telemetry"
)

func TestOrigins(t *testing.T) {
	from := func(end int, place string) origin { return origin{end: end, place: place} }
	o := Origins(nil).add(from(0, "slot")).add(from(3, "slot")).add(from(5, "local")).add(from(4, "ram")).add(from(8, "local"))
	require.Equal(t, Origins{from(3, "slot"), from(8, "local")}, o)
	require.Equal(t, Origins{from(3, "slot"), from(5, "local")}, o.Cut(5))
	require.Equal(t, Origins{from(3, "slot")}, o.Cut(3))
	require.Empty(t, o.Cut(0))
	require.Equal(t, o, o.Cut(99))
	cut := o.Cut(5)
	cut.add(from(9, "local"))
	require.Equal(t, Origins{from(3, "slot"), from(8, "local")}, o, "a cut shares nothing with its whole")
	near := o.add(origin{10, "local", true}).add(origin{12, "ram", true}).add(from(13, "slot"))
	require.Equal(t, 4, near.Lossy())
	require.Equal(t, 3, near.Cut(11).Lossy())
	require.Zero(t, near.Cut(8).Lossy())
	require.Zero(t, Origins(nil).Cut(4).End())
	near = o.AddPages([]diskstore.Ref{
		{Start: 4, Tokens: 6, Tier: "local"}, {Start: 10, Tokens: 6, Tier: "ram", Lossy: true}, {Start: 16, Tokens: 4, Tier: "remote"},
	}, 18)
	require.Equal(t, Origins{from(3, "slot"), from(10, "local"), {16, "ram", true}, {18, "remote", true}}, near)
	p := telemetry.Prompt{Tokens: 20}
	require.True(t, near.CountIn(&p))
	require.Equal(t, telemetry.Prompt{Tokens: 20, Slot: 3, Local: 7, RAM: 6, Remote: 2, Lossy: 8, Computed: 2}, p)
}
