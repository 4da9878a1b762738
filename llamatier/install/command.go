package install

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/kvtier/kvtier/internal/machine"
)

// command is kvtier in a folder of PATH, and whether it may be put there. One of the user's, or of a package, which
// will be updated, must not stand behind ours.
func (m *Machine) command(dir string) (path string, free bool) {
	path = filepath.Join(dir, "kvtier")
	info, err := os.Stat(dir)
	usable := err == nil && info.IsDir() || m.UID != 0 && dir != m.Bin // which is made
	_, taken := os.Lstat(path)
	_, missing := m.System.Find("kvtier")
	return path, usable && errors.Is(taken, fs.ErrNotExist) && missing != nil
}

func linksTo(path, program string) bool {
	target, err := os.Readlink(path)
	return err == nil && target == program
}

// command is kvtier in PATH, for an installation by file.
type command struct {
	link    string // in a folder of PATH
	program string // its target
	linked  bool   // it is there
	free    bool   // it may be made
}

// programOf is the path of our program for an Ollama's folder: beside it, because an update of Ollama may remove the
// folder.
func programOf(folder string) string { return folder + ".kvtier" }

// inPath is kvtier in PATH for an Ollama's folder. root gets no link to a file that others can change.
func (m *Machine) inPath(folder string) command {
	c := command{program: programOf(folder)}
	c.link, c.free = m.command(m.userBin())
	c.linked = linksTo(c.link, c.program)
	_, safe := m.trusted(filepath.Dir(folder))
	c.free = c.free && (safe || m.UID != 0)
	return c
}

// userBin is the folder in which this user gets the name kvtier.
func (m *Machine) userBin() string {
	if home := m.System.User().Home; m.UID != 0 && filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "bin")
	}
	return m.Bin
}

// commandsOf are the links to the program of a folder, and the directories that were made for them.
func (m *Machine) commandsOf(f folder) (links, dirs []string) {
	bin := m.userBin()
	for _, dir := range slices.Compact([]string{m.Bin, bin}) {
		if link, _ := m.command(dir); linksTo(link, programOf(f.path)) {
			links = append(links, link)
		}
	}
	for _, dir := range []string{bin, filepath.Dir(bin)} { // a note may name any
		if slices.Contains(f.note.Made, dir) {
			dirs = append(dirs, dir)
		}
	}
	return links, dirs
}

// sayCommand says which command lines are of use after an installation by file.
func (m *Machine) sayCommand(p *Plan, program string) {
	c := m.inPath(p.Ollama.Folder)
	dir, after := filepath.Dir(c.link), *m
	if c.free || c.linked {
		after.Line = []string{c.link}
	}
	p.hint("An update of Ollama puts its own llama-server back: run %s after it.", after.again("install", p.Ollama))
	switch _, missing := m.System.Find("kvtier"); {
	case missing == nil:
	case !c.free && !c.linked:
		p.last("kvtier is not in PATH: run it as %s, also after an update of Ollama.", machine.Quote(program))
	case !slices.Contains(filepath.SplitList(m.System.Variables()["PATH"]), dir):
		p.last(`%s is not in PATH: run export PATH=%s:"$PATH"`, dir, machine.Quote(dir))
	}
	if !on(machine.VariablesOf(m.System, m.Proc, m.process(p.Ollama.Executable))) {
		p.last("Nothing is stored until Ollama runs with tiering on: %s", startOf(p.Ollama))
	}
}

// startOf is the command line that starts a server without a service.
func startOf(o Ollama) string { return "OLLAMA_KV_TIERING=1 " + machine.Command(o.Executable, "serve") }
