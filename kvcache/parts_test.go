package kvcache

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ollama/ollama/model/input"
	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/diskstore/tier"
)

// No part holds the wrapper, and no function outside it takes one: each has the inputs that it uses.
func TestNoPartSeesTheWrapper(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	types := 0
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				types++
				if n.Name.Name != "checkpointed" { // the wrapper, as the runner sees it
					require.False(t, mentions(n.Type, "TieredCausal"), "%s: type %s", f.Name(), n.Name)
				}
			case *ast.FuncDecl:
				require.False(t, mentions(n.Type.Params, "TieredCausal"), "%s: func %s", f.Name(), n.Name)
			}
			return true
		})
	}
	require.Greater(t, types, 30)
}

// mentions reports whether a name is used below a node.
func mentions(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		id, ok := n.(*ast.Ident)
		found = found || ok && id.Name == name
		return !found
	})
	return found
}

func TestOutage(t *testing.T) {
	require.True(t, storeFails(fmt.Errorf("put page: %w", tier.ErrTierDown)))
	now := time.Unix(1000, 0)
	var o outage
	for range outageAfter - 1 {
		o.failed(now, true, false)
	}
	o.failed(now, false, false)
	require.False(t, o.suspends(now), "one page that fails again and again is no outage")
	o.failed(now, true, false)
	require.True(t, o.suspends(now.Add(retryFirst-1)))
	require.False(t, o.suspends(now.Add(retryFirst)))

	o = outage{}
	o.failed(now, false, true)
	require.True(t, o.suspends(now), "the store says that all of it fails")
	for range 20 {
		o.failed(now, false, true)
	}
	require.True(t, o.suspends(now.Add(retryIdle-1)))
	require.False(t, o.suspends(now.Add(retryIdle)))
	o.sooner()
	require.False(t, o.suspends(now.Add(retryAfter)), "there is a new page to store")
	require.True(t, o.suspends(now.Add(retryAfter-1)))
}

func TestRestoreBase(t *testing.T) {
	s := newSlot(chain{size: 8}, 1)
	s.tokens = tokenRange(1, 20)
	same, other := &prompt{tokens: tokenRange(1, 30)}, &prompt{tokens: append(tokenRange(1, 10), 7)}
	require.Equal(t, 20, s.restoreBase(20, same, true), "the slot goes on")
	require.Equal(t, 25, s.restoreBase(25, same, false), "rows past the mirror follow from the prompt")
	require.Equal(t, 10, s.restoreBase(20, other, true), "rows of other text are replaced")
	require.Zero(t, s.restoreBase(20, other, false), "a window belongs to one position")
	s.broken = true
	require.Equal(t, 20, s.restoreBase(25, same, true), "rows past the mirror are not exact")
	require.Zero(t, s.restoreBase(25, same, false))
}

func TestLastBegin(t *testing.T) {
	part := func(seq, begin, n int) batchPart {
		return batchPart{seq: seq, begin: int32(begin), inputs: make([]*input.Input, n)}
	}
	b := inFlight{}
	require.Equal(t, 20, b.lastBeginLocked(0, 20))
	b.built = []*inFlightBatch{{parts: []batchPart{part(0, 20, 5), part(1, 90, 5)}}, {parts: []batchPart{part(0, 25, 8)}}}
	require.Equal(t, 25, b.lastBeginLocked(0, 20))
	b.built = append(b.built, &inFlightBatch{parts: []batchPart{part(1, 95, 1)}})
	require.Equal(t, 33, b.lastBeginLocked(0, 20), "a batch without the sequence frees rows before its end")
	b.built = []*inFlightBatch{{parts: []batchPart{part(0, 12, 0)}}}
	require.Equal(t, 20, b.lastBeginLocked(0, 20), "the part was cut off")
}
