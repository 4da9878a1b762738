package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

// workflow is the part of a workflow file that names other files.
type workflow struct {
	Jobs map[string]struct {
		Uses     string
		Strategy struct {
			Matrix struct{ Targets []string }
		}
		Steps []struct {
			Uses string
			Run  string
			With map[string]string
		}
	}
}

const workflows = ".github/workflows/"

// pinned matches an action at a commit: unlike a tag, a commit cannot be moved.
var pinned = regexp.MustCompile(`^[\w-]+/[\w-]+@[0-9a-f]{40}$`)

// ourFile matches a path of this repository in a command.
var ourFile = regexp.MustCompile(`(?:^|\s)((?:\.ci|scripts)/[\w./-]+)`)

// TestWorkflows: the workflows are YAML, the files that they run exist, and their actions are
// pinned.
func TestWorkflows(t *testing.T) {
	entries, err := os.ReadDir(filepath.Join(root, workflows))
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	targets := matches(`(?m)^([a-z0-9-]+):`, read(t, "Makefile"))
	for _, entry := range entries {
		name := workflows + entry.Name()
		var w workflow
		require.NoError(t, yaml.Unmarshal([]byte(read(t, name)), &w), name)
		require.NotEmpty(t, w.Jobs, name)
		for job, j := range w.Jobs {
			if j.Uses != "" {
				require.FileExists(t, filepath.Join(root, j.Uses), "%s: %s", name, job)
			} else {
				require.NotEmpty(t, j.Steps, "%s: %s", name, job)
			}
			for _, step := range j.Steps {
				require.NotEqual(t, step.Uses == "", step.Run == "", "%s: %s: a step uses or runs something", name, job)
				if step.Uses != "" {
					require.Regexp(t, pinned, step.Uses, name)
				}
				for _, m := range ourFile.FindAllStringSubmatch(step.Run, -1) {
					info, err := os.Stat(filepath.Join(root, m[1]))
					require.NoError(t, err, name)
					require.NotZero(t, info.Mode()&0o100, "%s: %s cannot be run", name, m[1])
				}
				for _, target := range matches(`\bmake ([a-z-]+)`, step.Run) {
					require.Contains(t, targets, target, name)
				}
				for _, with := range []string{"go-version-file", "cache-dependency-path"} {
					for _, file := range strings.Fields(step.With[with]) {
						require.FileExists(t, filepath.Join(root, file), name)
					}
				}
			}
		}
	}
}

// TestJobsAreMakeTest: the jobs that run side by side are all that make test runs.
func TestJobsAreMakeTest(t *testing.T) {
	var w workflow
	require.NoError(t, yaml.Unmarshal([]byte(read(t, workflows+"ci.yml")), &w))
	job := w.Jobs["test"]
	require.Equal(t, ".ci/run test-deps ${{ matrix.targets }}", job.Steps[len(job.Steps)-1].Run)
	targets := strings.Fields("test-deps " + strings.Join(job.Strategy.Matrix.Targets, " "))
	require.Equal(t, matches(`(?m)^test: (.*) ##`, read(t, "Makefile")), []string{strings.Join(targets, " ")})
}
