package ollamasrc

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, name string) place {
	t.Helper()
	r, err := overlay(name)
	require.NoError(t, err)
	return r
}

func TestOverlayContains(t *testing.T) {
	for _, tc := range []struct{ name, inside, outside string }{
		{"v0.17.1+", "v0.17.1 v0.17.10 v0.18.0 v0.24.0", "v0.16.0 v0.17.0"},
		{"v0.16.0-v0.17.0", "v0.16.0 v0.16.3 v0.17.0", "v0.17.1 v0.24.0"},
		{"v0.17.5", "v0.17.5", "v0.17.4 v0.17.6"},
	} {
		r := parse(t, tc.name)
		for _, version := range strings.Fields(tc.inside) {
			require.True(t, r.contains(version), "%s holds %s", tc.name, version)
			require.True(t, common.contains(version))
		}
		for _, version := range strings.Fields(tc.outside) {
			require.False(t, r.contains(version), "%s holds %s", tc.name, version)
		}
	}
}

func TestOverlayRefuses(t *testing.T) {
	for _, name := range []string{
		"", "+", "v0.17+", "v0.17.1++", "v0.17.1-", "-v0.17.1", "v0.17.1 +", "0.17.1+", "v0.17.1-rc1",
		"v0.15.0+", "v0.16.0-v0.30.0", "v0.25.0", "v0.17.1-v0.16.0", "v0.16.0-v0.17.0-v0.18.0",
	} {
		_, err := overlay(name)
		require.ErrorContains(t, err, "is not a range of releases", name)
	}
}

func TestHome(t *testing.T) {
	for name, want := range map[string]string{
		"v0.16.0-v0.17.0": DefaultVersion,
		"v0.16.0+":        DefaultVersion,
		"v0.16.2+":        "v0.16.2",
		"v0.17.1+":        "v0.17.4",
		"v0.17.5-v0.17.7": "v0.17.5",
		"v0.20.0-v0.23.0": "v0.20.0",
		"v0.20.0+":        "v0.24.0",
	} {
		require.Equal(t, want, parse(t, name).home(), name)
	}
	require.Equal(t, DefaultVersion, common.home())
}

func TestOrderOfPlaces(t *testing.T) {
	names := []string{"", "v0.16.0-v0.17.0", "v0.17.1+", "v0.17.1-v0.17.7", "v0.17.1", "v0.17.10"}
	var ranges []place
	for _, name := range names {
		if name == "" {
			ranges = append(ranges, common)
		} else {
			ranges = append(ranges, parse(t, name))
		}
	}
	slices.Reverse(ranges)
	slices.SortFunc(ranges, comparePlaces)
	for i, r := range ranges {
		require.Equal(t, names[i], r.folder)
	}
}

// In the tree of a release, patches written from other releases' trees are applied first, so
// that the release's own patches always stand on the same commits.
func TestOrderPutsOtherHomesFirst(t *testing.T) {
	versions := []string{"v0.16.0", "v0.16.1", "v0.16.2", "v0.16.3", "v0.17.0", "v0.17.1", "v0.17.4", "v0.17.5", "v0.24.0"}
	ranges := []place{common}
	for i, from := range versions {
		ranges = append(ranges, parse(t, from+"+"))
		for _, to := range versions[i:] {
			ranges = append(ranges, parse(t, from+"-"+to))
		}
	}
	slices.SortFunc(ranges, comparePlaces)
	for _, version := range versions {
		home := ""
		for _, r := range ranges {
			switch {
			case !r.contains(version):
			case r.home() == version:
				home = r.folder
			default:
				require.Empty(t, home, "in %s, %q is applied after %q", version, r.folder, home)
			}
		}
	}
}
