package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/internal/machine"
)

// GroupVariable names, in our drop-in, the group whose members may read as the service's user.
const GroupVariable = "KVTIER_GROUP"

// readVerbs are the verbs of that group.
var readVerbs = []string{"ls", "stat", "ps", "why", "top", "doctor"}

// readLines are patterns of the lines that its members may give, for sudo and package path alike: another flag could
// name a file to write, or another directory, and * in the place of a model's name would let every flag through.
var readLines = func() (lines []string) {
	for _, verb := range readVerbs {
		lines = append(lines, verb, verb+" --json")
	}
	return append(lines, "why --all", "why --no-text", "why -n [0-9]", "why -n [0-9][0-9]")
}()

// ReadVerbs lists these verbs for a sentence.
func ReadVerbs() string { return list(readVerbs) }

// rightsName is the name of our file below Machine.Sudoers.
const rightsName = "kvtier"

// account matches names that mean themselves in sudo's files.
var account = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)

// commands are the places of kvtier in everybody's PATH.
func (m *Machine) commands() []string {
	return []string{filepath.Join(m.Bin, "kvtier"), "/usr/bin/kvtier"}
}

// safe reports whether only root decides what a command runs, also where there is none yet.
func (m *Machine) safe(command string) bool {
	_, folder := m.trusted(filepath.Dir(command))
	_, program := m.trusted(command)
	_, err := os.Lstat(command)
	return folder && (program || errors.Is(err, fs.ErrNotExist))
}

// rights is our file for sudo: members of a group run the verbs as the user of the pages, which stay its alone.
func (m *Machine) rights(group, as string) string {
	var list []string
	for _, path := range m.commands() {
		if !m.safe(path) {
			continue // a member could put another program there
		}
		for _, line := range readLines {
			list = append(list, path+" "+line)
		}
	}
	return dropInFirst + "# Texts of prompts are in what why prints.\n" +
		"%" + group + " ALL=(" + as + ") NOPASSWD: " + strings.Join(list, ", \\\n    ") + "\n"
}

// rightsFor is the text of our file for sudo, "" without a group.
func (m *Machine) rightsFor(u machine.Service, group string) (string, error) {
	as, path := u.Props["User"], filepath.Join(m.Sudoers, rightsName)
	command, free := m.command(m.Bin)
	usable := func(path string) bool {
		_, err := os.Stat(path)
		return m.safe(path) && (err == nil || free && path == command)
	}
	_, missing := user.LookupGroup(group)
	taken := slices.IndexFunc(m.Units.others(u.Name), func(other string) bool { return m.Units.group(other) != "" })
	dir, err := os.Stat(m.Sudoers)
	text, e := os.ReadFile(path)
	switch {
	case group == "":
		return "", nil
	case !account.MatchString(group) || missing != nil:
		return "", fmt.Errorf("--group %s names no group that sudo can be told of; getent group lists groups", group)
	case taken >= 0:
		return "", fmt.Errorf("--group is set for %s already, and one service may have it; leave it out, or take that back with --service %[1]s --reset group", m.Units.others(u.Name)[taken])
	case !account.MatchString(as) || as == "root" || u.Props["DynamicUser"] == "yes":
		return "", fmt.Errorf("--group needs a service with a user of its own, which %s has not; leave --group out, and use sudo kvtier", u.Name)
	case err != nil || !dir.IsDir():
		return "", fmt.Errorf("--group needs sudo, which has no %s here; install sudo, or leave --group out", m.Sudoers)
	case e == nil && !strings.HasPrefix(string(text), dropInFirst):
		return "", fmt.Errorf("%s was not written by kvtier; move it away", path)
	case !slices.ContainsFunc(m.commands(), usable):
		return "", fmt.Errorf("--group needs kvtier where only root can change it and its folder, as one of %s; ln -sf %s %s and chmod go-w %s make it so", list(m.commands()), filepath.Join(m.Base, ServerName), command, m.Bin)
	}
	return m.rights(group, as), nil
}

// hasRights reports whether our file for sudo has a text, as far as this user may see; "" is no file of ours.
func (m *Machine) hasRights(text string) bool {
	path := filepath.Join(m.Sudoers, rightsName)
	now, err := os.ReadFile(path)
	if _, e := os.Lstat(path + newSuffix); e == nil {
		return false // an installation was broken off
	}
	if errors.Is(err, fs.ErrPermission) {
		return true
	}
	if !strings.HasPrefix(string(now), dropInFirst) {
		now = nil
	}
	return string(now) == text
}

// ownsRights reports whether our file for sudo is that of a service, which has or gets this group: another one's stays.
func (m *Machine) ownsRights(service, group string) bool {
	return cmp.Or(group, m.Units.group(service)) != "" || len(m.Units.others(service)) == 0
}

// give adds to a step to write our file for sudo, or to remove it where text is "".
func (m *Machine) give(p *Plan, text string) {
	path := filepath.Join(m.Sudoers, rightsName)
	switch {
	case m.hasRights(text):
	case text == "":
		p.and(func(context.Context) error { return m.Change.remove(path+newSuffix, path) }, "remove %s", path)
	default:
		p.and(func(context.Context) error { return m.Change.put(path, []byte(text), 0o440) }, "write %s", path)
		p.shows(text)
	}
}

// reads is how a member of the group runs a verb as the service's user, "" without such a group.
func (m *Machine) reads(u machine.Service, group string) string {
	if group == "" || u.Props["User"] == "" {
		return ""
	}
	for _, path := range m.commands() {
		if _, err := os.Stat(path); err == nil && m.safe(path) {
			return "sudo -u " + u.Props["User"] + " " + path
		}
	}
	return ""
}

// CanRead reports whether the group may give a command line, the words behind kvtier.
func CanRead(line string) bool {
	return slices.ContainsFunc(readLines, func(pattern string) bool {
		matched, _ := path.Match(pattern, line) // the patterns are good
		return matched
	})
}
