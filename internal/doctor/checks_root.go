package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvtier/kvtier/diskstore/vfs"
	"github.com/kvtier/kvtier/internal/machine"
	"github.com/kvtier/kvtier/telemetry"
)

var rootChecks = []Check{
	{
		ID: "no-answer", Severity: Error, Title: "A directory or a program does not answer",
		Matters: "A server waits for a local directory that hangs, and leaves a remote one alone.",
		Means:   "A disk fails, or the server of a share is gone. The answer was waited for once, for `--timeout`, and the checks that need it were left out.",
		Remedy:  "findmnt --target {path}; sudo dmesg | tail",
		judge: func(s *scene, found func(hit)) {
			for _, name := range s.slow {
				path := name
				if !filepath.IsAbs(name) {
					path = "/"
				}
				found(hit{
					says: fmt.Sprintf("There was no answer from %s.", name), evidence: []Evidence{{name, "no answer within " + s.opt.Limit.String()}},
					values: []string{"{path}", machine.Quote(path)},
				})
			}
		},
	},
	{
		ID: "cannot-look", Severity: Note, Title: "You may not see a directory, a server's variables or its engine",
		Matters: "They could not be checked.",
		Means:   "Directories of pages have mode 0700, because pages are prompts. The variables of a running process are in `/proc/PID/environ`, which its own user and root may read. An engine is asked by the server's user or its container, and only for a service by root.",
		Remedy:  "{again}",
		judge: func(s *scene, found func(hit)) {
			again := []string{"{again}", cmp.Or(s.opt.Again, "sudo kvtier doctor")}
			for _, o := range s.servers {
				if o.PID > 0 && o.Set == nil {
					found(hit{
						says:     fmt.Sprintf("The variables of %s cannot be seen by this user.", o.title()),
						evidence: []Evidence{{fmt.Sprintf("/proc/%d/environ", o.PID), "no permission"}}, values: again,
					})
				}
			}
			for _, st := range s.stores {
				if h, ok := s.unasked(st); ok {
					found(h.with(again...))
				}
			}
			s.eachPlace(func(st store, p *place) {
				if p.denied {
					found(s.placeHit(st, p, p.path, "no permission", "%s could not be looked at by %s.", p.title(), cmp.Or(s.user.Name, "this user")).with(again...))
				}
			})
		},
	},
	{
		ID: "root-missing", Severity: Note, Title: "The local directory does not exist yet",
		Matters: "No page is stored so far.",
		Means:   "A server makes the directory when it loads its first model with tiering on.",
		Remedy:  "ollama run MODEL  # then look at the server's log for: kv tier",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				idle := len(st.servers) > 0 && !st.on || len(st.servers) == 0 && len(s.servers) > 0 // other findings say why
				if p.missing && p.tier == telemetry.PlaceLocal && (!idle || s.opt.Root != "") {
					found(s.placeHit(st, p, p.path, "does not exist", "%s does not exist yet.", p.title()))
				}
			})
		},
	},
	{
		ID: "remote-missing", Severity: Error, Title: "The remote directory does not exist",
		Matters: "Pages that leave the local tier are deleted.",
		Means:   "A server never makes the remote directory, so that a mount point without its mount stays empty.",
		Remedy:  "{sudo} install -d -m 700 -o {user} {path}",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				if p.missing && p.tier == telemetry.PlaceRemote {
					found(s.placeHit(st, p, p.path, "does not exist", "%s does not exist.", p.title()))
				}
			})
		},
	},
	{
		ID: "mount-missing", Severity: Error, Title: "A filesystem that should be mounted is not",
		Matters: "The directory below the empty mount point is another one, on another disk.",
		Means:   "The directory of pages is below a mount point of `/etc/fstab`, and nothing is mounted there.",
		Remedy:  "sudo mount {point}",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				for _, t := range s.Planned {
					mounted := slices.ContainsFunc(s.Mounted, func(m machine.Mount) bool { return m.Point == t.Point })
					if t.Point == "/" || !machine.Within(p.path, t.Point) || mounted {
						continue
					}
					found(s.placeHit(st, p, "/etc/fstab", t.Source+" on "+t.Point, "%s is below %s, where nothing is mounted.", p.title(), t.Point).with("{point}", machine.Quote(t.Point)))
				}
			})
		},
	},
	{
		ID: "root-unsafe", Severity: Error, Title: "The directory of pages is not safe from other users",
		Matters: "Tiering is off, because another user could replace prompts.",
		Means:   "The directory of pages must belong to the server's user, must not be writable by its group or by all, and must not itself be a link. Mostly root made it, or a share has another number for the user. An NFS server with `root_squash`, the default, makes nobody of root: let the service have a user of its own.",
		Remedy:  "{sudo} chown -R {user} {path}; {sudo} chmod 700 {path}",
		// judge repeats the server's own look at a directory, with the cause.
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				switch {
				case !p.there():
					return
				case !p.file.Mode.IsDir():
					h := s.placeHit(st, p, p.path, p.file.Mode.String(), "%s is a link or no directory.", p.title())
					h.remedy = "readlink -f {path}  # give a directory as {variable}"
					found(h)
				}
				if h, ok := s.ownerHit(st, p); ok {
					found(h)
				}
				if p.file.UID >= 0 && p.file.Mode.IsDir() && p.file.Mode.Perm()&0o022 != 0 {
					h := s.placeHit(st, p, "mode of "+p.path, fmt.Sprintf("%04o", p.file.Mode.Perm()), "Others may write to %s.", p.title())
					h.remedy = "{sudo} chmod 700 {path}"
					found(h)
				}
			})
		},
	},
	{
		ID: "root-read-only", Severity: Error, Title: "The directory of pages cannot be written",
		Matters: "Nothing is stored, or the default directory changes to one in /tmp.",
		Means:   "The filesystem is mounted read-only, also after an error of the disk, or refuses this user's writes. Or `ProtectSystem` and `ProtectHome` keep the service out.",
		Remedy:  "findmnt --target {path}; sudo dmesg | tail; {sudo} mount -o remount,rw {point}",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				m, ok := machine.MountOf(s.Mounted, p.above)
				refused := p.probed && (vfs.IsReadOnly(p.probeErr) || errors.Is(p.probeErr, fs.ErrPermission) && s.user.UID == p.file.UID)
				o := s.by(st)
				switch {
				case ok && slices.Contains(m.Options, "ro"):
					found(s.placeHit(st, p, "mount "+m.Point, "ro", "%s is on a filesystem that is mounted read-only.", p.title()))
				case refused:
					found(s.placeHit(st, p, p.path, p.probeErr.Error(), "%s cannot be written.", p.title()))
				}
				if o.Kind == machine.BySystemd && !o.Service.Writable(p.path) {
					found(s.protectedHit(st, p, o))
				}
			})
		},
	},
	{
		ID: "root-emptied", Severity: Error, Title: "The directory of pages is emptied",
		Matters: "Pages get lost that would still be of use.",
		Means:   "A filesystem in memory, such as tmpfs, is empty after each boot and takes memory that models need. Many systems empty `/tmp` when they boot, and remove old files there and in `/var/tmp`. With `PrivateTmp=yes` a service has a `/tmp` and `/var/tmp` of its own, which go when it stops.",
		Remedy:  "{set}",
		judge: func(s *scene, found func(hit)) {
			s.eachPlace(func(st store, p *place) {
				if o := s.by(st); o.Kind == machine.BySystemd && o.Service.PrivateTmp(p.path) {
					found(s.placeHit(st, p, o.Name, "PrivateTmp=yes", "%s is in a directory that systemd deletes whenever %s stops.", p.title(), o.Name))
				} else if p.diskErr == nil && p.disk.RAM {
					found(s.placeHit(st, p, "filesystem of "+p.above, "in memory", "%s is in memory.", p.title()))
				} else if machine.Within(p.path, "/tmp") || machine.Within(p.path, "/var/tmp") {
					found(s.placeHit(st, p, p.path, "below a directory for temporary files", "%s is emptied when this machine boots, or by age.", p.title()))
				}
			})
		},
	},
}

// eachPlace calls fn for each directory that answers.
func (s *scene) eachPlace(fn func(st store, p *place)) {
	for _, st := range s.stores {
		for _, p := range st.places {
			if !p.noAnswer {
				fn(st, p)
			}
		}
	}
}

// values are those that remedies about a directory need.
func (s *scene) values(st store, p *place) []string {
	o := s.by(st)
	m, _ := machine.MountOf(s.Mounted, p.path)
	variable, dir := variableOf(p.tier), "/var/lib/ollama-kv"
	switch {
	case p.tier == telemetry.PlaceRemote:
		dir = "/mnt/kv/pages"
	case machine.Within(p.path, dir):
		dir = "/srv/ollama-kv"
	}
	user := machine.Quote(cmp.Or(o.User.Name, s.names[o.User.UID], "ollama"))
	as := "" // for verbs about pages, which only their owner may use
	if p.file.UID >= 0 && p.file.UID != s.user.UID && !p.missing {
		as = "sudo -u " + machine.Quote(cmp.Or(s.names[p.file.UID], o.User.Name)) + " "
	}
	return []string{
		"{kvtier}", as + "kvtier", "{as}", as, "{sudo}", cmp.Or(strings.TrimSpace(o.as), "sudo"), "{path}", machine.Quote(p.path), "{user}", user, "{point}", machine.Quote(cmp.Or(m.Point, p.path)),
		"{set}", "sudo install -d -m 700 -o " + user + " " + dir + " && " + o.setting(variable, dir), "{variable}", variable, "{server}", machine.Quote(cmp.Or(o.Name, "ollama.service")),
		"{dir}", machine.Quote("/etc/systemd/system/" + cmp.Or(o.Name, "ollama.service") + ".d"),
	}
}

// variableOf is the variable that names the directory of a tier.
func variableOf(tier string) string {
	if tier == telemetry.PlaceRemote {
		return remoteVar
	}
	return localVar
}

func (p *place) title() string { return fmt.Sprintf("the %s directory %s", p.tier, p.path) }

func (s *scene) placeHit(st store, p *place, of, value, format string, args ...any) hit {
	return hit{says: fmt.Sprintf(format, args...), evidence: []Evidence{{of, value}}, values: s.values(st, p)}
}

// there reports whether the directory could be described.
func (p *place) there() bool { return !p.missing && (!p.denied || p.file.Mode != 0) }

// ownerHit is the finding about a directory that is not its server's.
func (s *scene) ownerHit(st store, p *place) (h hit, ok bool) {
	uid := s.by(st).User.UID
	if uid < 0 || p.file.UID < 0 || p.file.UID == uid {
		return h, false
	}
	o, known := s.owner(st)
	if !known && s.user.UID == 0 {
		return h, false // root looks at the directory of some server
	}
	who := cmp.Or(s.names[p.file.UID], fmt.Sprint(p.file.UID))
	mine := cmp.Or(s.by(st).User.Name, s.names[uid], fmt.Sprint(uid))
	verb := "the server runs as"
	if !known {
		verb = "this is"
	}
	h = s.placeHit(st, p, "owner of "+p.path, fmt.Sprintf("%s (%d)", who, p.file.UID), "%s belongs to %s, and %s %s.", p.title(), who, verb, mine)
	switch {
	case !known: // a server of the owner may use it: a new owner would take its pages away
		h.remedy = "sudo -u {who} kvtier doctor --root {local}"
		h.values = append(h.values, "{who}", machine.Quote(who), "{local}", machine.Quote(cmp.Or(st.Local, p.path)))
	case o.as != "": // a directory that belongs to others stays theirs
		dir := filepath.Join(cmp.Or(o.User.Home, "/var/tmp"), "kv-pages")
		h.remedy = "{as}mkdir -p -m 700 {own} && {set}"
		h = h.with("{as}", o.as, "{own}", machine.Quote(dir), "{set}", o.setting(variableOf(p.tier), dir))
	default:
		h.remedy = "{sudo} chown -R {user} {path}"
	}
	return h, true
}

// protectedHit is the finding about a directory that systemd keeps a service out of.
func (s *scene) protectedHit(st store, p *place, o server) hit {
	of := []string{}
	for _, name := range []string{"ProtectSystem", "ProtectHome"} {
		if v := o.Service.Props[name]; v != "" && v != "no" {
			of = append(of, name+"="+v)
		}
	}
	h := s.placeHit(st, p, o.Name, strings.Join(of, " "), "%s may not write to %s.", o.Name, p.title())
	h.remedy = "sudo mkdir -p {dir} && printf '[Service]\\nReadWritePaths=%s\\n' {allowed} | sudo tee {dir}/pages.conf && sudo systemctl daemon-reload && sudo systemctl restart {server}"
	h.values = append(h.values, "{allowed}", machine.Quote(machine.InUnit("-"+p.path)))
	if o.Service.Hides(p.path) {
		h.remedy = "{visible}"
		h.values = append(h.values, "{visible}", o.setting(localVar, "/var/lib/ollama-kv"))
	}
	return h
}
