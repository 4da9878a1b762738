package docs

import (
	goversion "go/version"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kvtier/kvtier/internal/ollamasrc"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"

	"github.com/kvtier/kvtier/llamatier/install"
)

const (
	dockerfile = "Dockerfile"
	compose    = "compose.yaml"
)

// TestDockerfile: tests build no image, so each line is compared with the files that the
// line needs.
func TestDockerfile(t *testing.T) {
	text := read(t, dockerfile)
	require.Contains(t, text, "\nFROM ollama/ollama:"+strings.TrimPrefix(ollamasrc.DefaultVersion, "v")+"\n")

	// The Go release is new enough, and the list of packages is complete.
	_, image, found := strings.Cut(text, "\nFROM golang:")
	require.True(t, found)
	image, _, _ = strings.Cut(image, "-")
	wants := matches(`(?m)^go (\S+)$`, read(t, "go.mod"))[0]
	require.GreaterOrEqual(t, goversion.Compare("go"+image+".0", "go"+wants), 0)
	packages := matches(`(?m)^debian=\((.*)\)$`, read(t, "scripts/deps"))
	require.Len(t, packages, 1)
	require.Contains(t, text, " "+packages[0]+" ")

	built := matches(`build/ollama/(bin/[a-z]+)`, read(t, "Makefile"))
	var workdir string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "WORKDIR":
			workdir = words[1]
		case len(words) > 2 && words[0] == "RUN" && words[1] == "make":
			require.Contains(t, matches(`(?m)^([a-z0-9-]+):`, read(t, "Makefile")), words[2])
		case len(words) > 3 && words[0] == "COPY" && words[1] == "--from=build":
			for _, source := range words[2 : len(words)-1] {
				made, ok := strings.CutPrefix(source, workdir+"/build/ollama/")
				require.True(t, ok, line)
				require.Contains(t, built, made, line)
			}
		case len(words) > 2 && words[0] == "COPY":
			for _, source := range words[1 : len(words)-1] {
				_, err := os.Stat(filepath.Join(root, source))
				require.NoError(t, err, line)
				require.False(t, ignoredByDocker(t, source), line)
			}
		}
	}
	require.NotEmpty(t, workdir)
}

// TestStockContainer: the files for a stock image do as docs/install.md says, with the release that
// tests run.
func TestStockContainer(t *testing.T) {
	text := read(t, "docker/Dockerfile")
	_, last, found := strings.Cut(text, "\nFROM ollama/")
	require.True(t, found)
	_, lines, found := strings.Cut(read(t, "docs/install.md"), "```dockerfile\n")
	require.True(t, found)
	lines, _, _ = strings.Cut(lines, "```")
	for line := range strings.Lines(lines) {
		if program, copied := strings.CutPrefix(line, "COPY "); copied {
			line = "COPY --from=build /out/" + program
		}
		require.Contains(t, "FROM ollama/"+last, line)
	}
	for _, name := range matches(`(\./cmd/\S+)`, text) {
		require.DirExists(t, filepath.Join(root, name))
	}
	require.Contains(t, read(t, dockerfile), "FROM "+matches(`(?m)^FROM (golang:\S+)`, text)[0])

	require.Equal(t, matches(`(?m)^ollama=v(\S+)$`, read(t, "scripts/build-llama-server")), matches(`FROM ollama/ollama:(\S+)`, lines))
	require.Equal(t, matches(`FROM ollama/ollama:(\S+)`, lines), []string{install.Tried})

	var file struct{ Services map[string]map[string]any }
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "docker/compose.yaml")), &file))
	build := file.Services["ollama"]["build"].(map[string]any)
	require.FileExists(t, filepath.Join(root, "docker", build["context"].(string), build["dockerfile"].(string)))
	require.Equal(t, true, file.Services["ollama"]["init"])
	for name := range file.Services["ollama"]["environment"].(map[string]any) {
		require.Contains(t, section(t, read(t, configuration), "## All variables"), "`"+name+"`")
	}
}

// TestDockerignore: the build gets its sources and the commit, and no file of an earlier
// build.
func TestDockerignore(t *testing.T) {
	for _, name := range []string{".git", "go.mod", "Makefile", "cmd/kvtier/main.go", "patches/README.md", "scripts/deps"} {
		require.False(t, ignoredByDocker(t, name), name)
	}
	for _, name := range []string{"build", "a.test", "diskstore/diskstore.test", "cpu.out"} {
		require.True(t, ignoredByDocker(t, name), name)
	}
}

// ignoredByDocker evaluates the two forms of patterns in .dockerignore: names below the
// root, and **/ before a pattern of a name.
func ignoredByDocker(t *testing.T, name string) bool {
	t.Helper()
	for line := range strings.Lines(read(t, ".dockerignore")) {
		pattern := strings.TrimSpace(line)
		if pattern == "" || strings.HasPrefix(pattern, "#") {
			continue
		}
		of := name
		if rest, anywhere := strings.CutPrefix(pattern, "**/"); anywhere {
			pattern, of = rest, path.Base(name)
		}
		matched, err := path.Match(pattern, of)
		require.NoError(t, err)
		if matched {
			return true
		}
	}
	return false
}

// TestCompose: the service is built from this repository, gets the GPUs, keeps its pages in
// a volume, and sets existing variables.
func TestCompose(t *testing.T) {
	var file struct {
		Services map[string]struct {
			Build       string
			Ports       []string
			Environment map[string]string
			Volumes     []string
			Deploy      struct {
				Resources struct {
					Reservations struct {
						Devices []struct {
							Driver       string
							Count        string
							Capabilities []string
						}
					}
				}
			}
		}
		Volumes map[string]any
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, compose)), &file))
	service := file.Services["ollama"]
	require.Equal(t, ".", service.Build)
	devices := service.Deploy.Resources.Reservations.Devices
	require.Len(t, devices, 1)
	require.Equal(t, "nvidia", devices[0].Driver)
	require.Equal(t, []string{"gpu"}, devices[0].Capabilities)
	for _, port := range service.Ports {
		require.Regexp(t, `^127\.0\.0\.1:`, port)
	}
	require.NotEmpty(t, service.Volumes)
	for _, volume := range service.Volumes {
		name, _, _ := strings.Cut(volume, ":")
		require.Contains(t, file.Volumes, name)
	}
	documented := section(t, read(t, configuration), "## All variables")
	set := regexp.MustCompile(`ENV (OLLAMA_[A-Z_]+)=`).FindAllStringSubmatch(read(t, dockerfile), -1)
	require.NotEmpty(t, set)
	for _, m := range set {
		require.Contains(t, documented, "`"+m[1]+"`")
	}
	for name := range service.Environment {
		require.Contains(t, documented, "`"+name+"`")
	}
}
