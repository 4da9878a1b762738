package top

import (
	"context"
	"slices"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/kvtier/kvtier/telemetry"
	"github.com/kvtier/kvtier/telemetry/show"
)

// server is one server's part of a model.
type server struct {
	root    string
	reading bool // a question is on its way; there is one at a time
	known   bool // state has been read
	state   telemetry.State
	err     error // of the latest question
	rates   rates
}

// model is the state of the program. All of its methods run in one goroutine.
type model struct {
	ctx     context.Context
	opt     Options
	name    show.Name
	style   styles
	servers []*server
	shown   int // index into servers
	looking bool
	holding bool // a question for the memory that processes hold is on its way
	held    []Held
	ticks   int
	still   bool // no keys are read

	width, height int
}

// Messages of the program.
type (
	tick   struct{}
	answer struct {
		server *server
		state  telemetry.State
		err    error
	}
	memory []Held
	found  struct {
		roots []string
		name  show.Name
	}
)

func newModel(ctx context.Context, opt Options) *model {
	return &model{ctx: ctx, opt: opt, name: plainName, style: newStyles(opt.Color, opt.ASCII)}
}

func plainName(weights, own string) string {
	if own != "" {
		return own
	}
	return "weights " + weights[:min(len(weights), 12)]
}

func (m *model) Init() tea.Cmd { return tea.Batch(m.look(), m.weigh(), m.nextTick()) }

func (m *model) nextTick() tea.Cmd {
	return tea.Tick(m.opt.interval(), func(time.Time) tea.Msg { return tick{} })
}

func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyMsg:
		return m.key(msg.String())
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case found:
		m.looking = false
		m.name = msg.name
		m.setRoots(msg.roots)
		return m, m.ask()
	case answer:
		msg.server.take(msg.state, msg.err)
	case memory:
		m.holding, m.held = false, msg
	case tick:
		m.ticks++
		commands := []tea.Cmd{m.ask(), m.weigh(), m.nextTick()}
		if m.ticks%lookEvery == 0 {
			commands = append(commands, m.look())
		}
		return m, tea.Batch(commands...)
	}
	return m, nil
}

func (m *model) key(key string) (tea.Model, tea.Cmd) {
	n := len(m.servers)
	switch key {
	case "q", "Q", "ctrl+c", "esc":
		return m, tea.Quit
	case "tab", "right", "n":
		if n > 0 {
			m.shown = (m.shown + 1) % n
		}
	case "shift+tab", "left", "p":
		if n > 0 {
			m.shown = (m.shown + n - 1) % n
		}
	}
	return m, nil
}

// look finds servers and names. Directories may hang, so there is one look at a time.
func (m *model) look() tea.Cmd {
	if m.looking {
		return nil
	}
	m.looking = true
	opt := m.opt
	return func() tea.Msg {
		f := found{roots: opt.Roots(), name: plainName}
		if opt.Names != nil {
			f.name = opt.Names()
		}
		return f
	}
}

// weigh asks for the K/V memory that processes hold, one question at a time.
func (m *model) weigh() tea.Cmd {
	if m.holding || m.opt.Held == nil {
		return nil
	}
	m.holding = true
	return func() tea.Msg { return memory(m.opt.Held()) }
}

// setRoots keeps the servers that are known, and the one that is shown.
func (m *model) setRoots(roots []string) {
	var shown *server
	if m.shown < len(m.servers) {
		shown = m.servers[m.shown]
	}
	var list []*server
	for _, root := range roots[:min(len(roots), ServersMax)] {
		s := &server{root: root}
		if i := slices.IndexFunc(m.servers, func(s *server) bool { return s.root == root }); i >= 0 {
			s = m.servers[i]
		}
		list = append(list, s)
	}
	m.servers = list
	m.shown = max(0, slices.Index(list, shown))
}

// ask asks each server that has answered the question before.
func (m *model) ask() tea.Cmd {
	var commands []tea.Cmd
	for _, s := range m.servers {
		if s.reading {
			continue
		}
		s.reading = true
		commands = append(commands, func() tea.Msg {
			state, err := read(m.ctx, m.opt, s.root)
			return answer{s, state, err}
		})
	}
	return tea.Batch(commands...)
}

// take notes an answer. After a failure the last state stays.
func (s *server) take(state telemetry.State, err error) {
	s.reading, s.err = false, err
	if err != nil {
		s.rates = rates{}
		return
	}
	s.known, s.state = true, state
	if state.Live {
		s.rates.add(state)
	} else {
		s.rates = rates{}
	}
}

// fresh reports whether a collector has told which processes run now.
func (s *server) fresh() bool { return s.known && s.err == nil && s.state.Live }

// status says in a few words whether the numbers are of now.
func (s *server) status(now time.Time) (text string, good bool) {
	old := now.Sub(s.state.At)
	switch {
	case !s.known && s.err == nil:
		return "reading", true
	case !s.known:
		return "waiting for the server", false
	case !s.fresh():
		return "waiting for the server, " + shortAgo(s.state.At, now) + " old", false
	case old > silentAfter:
		return "no news for " + shortAgo(s.state.At, now), false
	}
	return "live", true
}

// View is the frame for the terminal's size.
func (m *model) View() string {
	if m.width <= 0 || m.height <= 0 {
		return ""
	}
	return m.frame(m.width, m.height)
}
