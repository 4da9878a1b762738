package evict

// homeAbout says what home makes.
const homeAbout = "a household in 28 days: 4 chats a day of 8 turns of about 1,000 tokens, 30% about a file of 6,000 or more, " +
	"35% go on days later, 4 single prompts a day, a document of 60,000 tokens asked 6 times on one evening a week, " +
	"40 prompts of a script each night"

// Figures of home.
const (
	homeDays      = 28
	homeMorning   = 7 * hour
	homeAwake     = 16 * hour
	homeChats     = 4    // a day
	homeSystem    = 1100 // tokens of the system prompt of chats and single prompts
	homeFiles     = 0.3  // of chats
	homeFile      = 6000 // tokens of a file, median
	homeTurns     = 8    // of a chat until it rests, on average
	homeQuestion  = 150  // tokens, median
	homeAnswer    = 600  // tokens, median
	homeSpread    = 0.8  // of the logarithms of numbers of tokens
	homeTurn      = 90   // seconds between turns, on average
	homeResumed   = 0.35 // of chats, again and again
	homeAway      = 2 * day
	homeSingles   = 4    // a day
	homeSingle    = 1500 // tokens, median
	homeWeek      = 7    // days from one document to the next
	homeDocument  = 60_000
	homeAsked     = 6 // times
	homeEvening   = 19 * hour
	homeReads     = 10 * minute // between questions about the document, on average
	homeScan      = 40          // prompts each night
	homeNight     = 3 * hour
	homeScanTurn  = 10   // seconds between prompts of the script
	homeScanTask  = 700  // tokens that all prompts of the script share
	homeScanInput = 3000 // tokens, median
)

// home makes the requests of a household: chats, of which some go on days later, single prompts, questions
// about a long document on one evening of each week, and each night a script's prompts, which share a task.
func home(m *maker) {
	system, script := m.longer(text{}, homeSystem), m.longer(text{}, homeScanTask)
	for d := range homeDays {
		today := float64(d) * day
		for range homeChats {
			m.chat(today+homeMorning+m.rng.Float64()*homeAwake, system)
		}
		for range homeSingles {
			m.ask(today+homeMorning+m.rng.Float64()*homeAwake, m.longer(system, m.about(homeSingle, homeSpread)))
		}
		if d%homeWeek == homeWeek-1 {
			m.turns(today+homeEvening, m.longer(system, homeDocument), homeAsked, homeReads)
		}
		for i := range homeScan {
			m.ask(today+homeNight+float64(i)*homeScanTurn, m.longer(script, m.about(homeScanInput, homeSpread)))
		}
	}
}

// chat makes a chat, which may go on days later.
func (m *maker) chat(at float64, context text) {
	if m.chance(homeFiles) {
		context = m.longer(context, m.about(homeFile, homeSpread))
	}
	for resumed := true; resumed; resumed = m.chance(homeResumed) {
		at, context = m.turns(at, context, m.times(homeTurns), homeTurn)
		at += m.soon(homeAway)
	}
}

// turns makes some turns of a chat, and returns when they end and the context then.
func (m *maker) turns(at float64, context text, n int, pause float64) (float64, text) {
	for range n {
		context = m.longer(context, m.about(homeQuestion, homeSpread))
		m.ask(at, context)
		context = m.longer(context, m.about(homeAnswer, homeSpread))
		at += 5 + m.soon(pause)
	}
	return at, context
}
