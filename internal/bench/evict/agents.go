package evict

// agentsAbout says what agents makes.
const agentsAbout = "coding agents: 40 sessions in a day, 60 turns of about 1,900 tokens behind 12,000 shared ones, " +
	"35% go on hours later, a sub-agent in 4% of turns, compacted at 120,000 tokens"

// Figures of agents.
const (
	agentSessions = 40
	agentBegin    = 8 * hour   // in which sessions begin
	agentSystem   = 12_000     // tokens of the system prompt and the tools, which all sessions share
	agentTask     = 600        // tokens of what the user says, median
	agentTurns    = 60         // until the user goes, on average
	agentAnswer   = 250        // tokens of an answer, median
	agentOutput   = 900        // tokens of a tool's output behind it, median
	agentSpread   = 1.0        // of their logarithms
	agentTurn     = 20         // seconds between turns, on average
	agentThinks   = 0.15       // of turns, after which the user reads first
	agentReads    = 4 * minute // on average
	agentResumed  = 0.35       // of sessions, again and again
	agentAway     = 5 * hour   // on average
	agentSubs     = 0.04       // of turns
	agentSubTurns = 10         // on average
	agentContext  = 120_000    // tokens at which a context is compacted
	agentSummary  = 4000       // tokens that take its place, median
)

// agents makes the requests of coding agents. All sessions begin with the same system prompt. A turn's prompt
// is the one before it, its answer and a tool's output. A sub-agent begins with the system prompt, too, and
// works between two turns of its session. A full context is compacted: a summary takes the place of everything
// behind the system prompt. Some sessions go on hours later.
func agents(m *maker) {
	system := m.longer(text{}, agentSystem)
	for range agentSessions {
		at, context := m.rng.Float64()*agentBegin, system
		for resumed := true; resumed; resumed = m.chance(agentResumed) {
			context = m.longer(context, m.about(agentTask, agentSpread))
			at, context = m.agent(at, system, context, m.times(agentTurns), agentSubs)
			at += agentReads + m.soon(agentAway)
		}
	}
}

// agent makes the turns of an agent, and returns when they end and the context then.
func (m *maker) agent(at float64, system, context text, turns int, subs float64) (float64, text) {
	for range turns {
		if context.tokens > agentContext {
			context = m.longer(system, m.about(agentSummary, agentSpread))
		}
		m.ask(at, context)
		at += 1 + m.soon(agentTurn)
		context = m.longer(context, m.about(agentAnswer, agentSpread)+m.about(agentOutput, agentSpread))
		switch {
		case m.chance(subs):
			at, _ = m.agent(at, system, m.longer(system, m.about(agentTask, agentSpread)), m.times(agentSubTurns), 0)
		case m.chance(agentThinks):
			at += m.soon(agentReads)
		}
	}
	return at, context
}
