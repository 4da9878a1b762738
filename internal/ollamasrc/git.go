package ollamasrc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Commits made here carry a fixed identity and date, so that the same version
// and series give the same commit ids on every machine.
const (
	committerName  = "patch-ollama"
	committerEmail = "patch-ollama@kvtier.invalid"
	baseDate       = "2024-01-01T00:00:00Z"

	// abbrevDigits is the length of the object names in the patches' index
	// lines. Git would otherwise lengthen them as a repository grows, and every
	// machine would format the series differently.
	abbrevDigits = 12
)

// git runs git commands on one repository.
type git struct {
	dir string   // working directory
	env []string // on top of the cleaned environment
	own bool     // a repository made by this package: personal and system settings do not apply
}

// ownConfig replaces the user's settings that could change a commit or a patch.
var ownConfig = []string{
	"-c", "user.name=" + committerName,
	"-c", "user.email=" + committerEmail,
	"-c", fmt.Sprintf("core.abbrev=%d", abbrevDigits),
	"-c", "core.hooksPath=" + os.DevNull,
	"-c", "core.autocrlf=false",
	"-c", "core.safecrlf=false",
	"-c", "core.quotePath=false",
	"-c", "commit.gpgSign=false",
	"-c", "am.threeWay=false",
	"-c", "gc.auto=0",
	"-c", "maintenance.auto=false",
}

// run returns git's standard output without the last newline.
func (g git) run(ctx context.Context, args ...string) (string, error) {
	var config []string
	env := append(gitEnv(os.Environ()), "LC_ALL=C", "GIT_TERMINAL_PROMPT=0")
	if g.own {
		config = append(slices.Clone(ownConfig), "-c", "safe.directory="+g.dir)
		env = append(env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+os.DevNull)
	}
	cmd := command(ctx, "git", append(config, args...)...)
	cmd.Dir, cmd.Env = g.dir, append(env, g.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	switch output := strings.TrimSpace(stdout.String() + stderr.String()); {
	case err == nil:
		return strings.TrimRight(stdout.String(), "\n"), nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, exec.ErrNotFound):
		return "", errNoGit
	case output != "":
		return "", fmt.Errorf("git %s: %s", args[0], output)
	default:
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
}

// gitEnv drops variables by which an enclosing git (a hook, a rebase) would redirect
// commands to its own repository.
func gitEnv(environ []string) []string {
	return slices.DeleteFunc(environ, func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return strings.HasPrefix(name, "GIT_") && name != "GIT_EXEC_PATH" && !strings.HasPrefix(name, "GIT_CONFIG")
	})
}

// errNoGit is the error of every verb on a machine without git.
var errNoGit = errors.New("git was not found; install it (apt install git, dnf install git, pacman -S git, brew install git)")
