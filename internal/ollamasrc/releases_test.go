package ollamasrc

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func parse(t *testing.T, name string) Releases {
	t.Helper()
	r, err := ParseReleases(name)
	require.NoError(t, err)
	return r
}

func TestReleasesContains(t *testing.T) {
	for _, tc := range []struct{ name, inside, outside string }{
		{"v0.17.1+", "v0.17.1 v0.17.10 v0.18.0 v0.24.0", "v0.16.0 v0.17.0"},
		{"v0.16.0-v0.17.0", "v0.16.0 v0.16.3 v0.17.0", "v0.17.1 v0.24.0"},
		{"v0.17.5", "v0.17.5", "v0.17.4 v0.17.6"},
	} {
		r := parse(t, tc.name)
		for _, version := range strings.Fields(tc.inside) {
			require.True(t, r.Contains(version), "%s holds %s", tc.name, version)
			require.True(t, Releases{}.Contains(version))
		}
		for _, version := range strings.Fields(tc.outside) {
			require.False(t, r.Contains(version), "%s holds %s", tc.name, version)
		}
	}
}

func TestParseReleasesRefuses(t *testing.T) {
	for _, name := range []string{
		"", "+", "v0.17+", "v0.17.1++", "v0.17.1-", "-v0.17.1", "v0.17.1 +", "0.17.1+", "v0.17.1-rc1",
		"v0.15.0+", "v0.16.0-v0.30.0", "v0.25.0", "v0.17.1-v0.16.0", "v0.16.0-v0.17.0-v0.18.0",
	} {
		_, err := ParseReleases(name)
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
		require.Equal(t, want, parse(t, name).Home(), name)
	}
	require.Equal(t, DefaultVersion, Releases{}.Home())
}

func TestReleasesOrder(t *testing.T) {
	names := []string{"", "v0.16.0-v0.17.0", "v0.17.1+", "v0.17.1-v0.17.7", "v0.17.1", "v0.17.10"}
	var ranges []Releases
	for _, name := range names {
		if name == "" {
			ranges = append(ranges, Releases{})
		} else {
			ranges = append(ranges, parse(t, name))
		}
	}
	slices.Reverse(ranges)
	slices.SortFunc(ranges, compareReleases)
	for i, r := range ranges {
		require.Equal(t, names[i], r.Name)
	}
}

// In the tree of a release, patches written from other releases' trees are applied first, so
// that the release's own patches always stand on the same commits.
func TestOrderPutsOtherHomesFirst(t *testing.T) {
	versions := []string{"v0.16.0", "v0.16.1", "v0.16.2", "v0.16.3", "v0.17.0", "v0.17.1", "v0.17.4", "v0.17.5", "v0.24.0"}
	ranges := []Releases{{}}
	for i, from := range versions {
		ranges = append(ranges, parse(t, from+"+"))
		for _, to := range versions[i:] {
			ranges = append(ranges, parse(t, from+"-"+to))
		}
	}
	slices.SortFunc(ranges, compareReleases)
	for _, version := range versions {
		home := ""
		for _, r := range ranges {
			switch {
			case !r.Contains(version):
			case r.Home() == version:
				home = r.Name
			default:
				require.Empty(t, home, "in %s, %q is applied after %q", version, r.Name, home)
			}
		}
	}
}
