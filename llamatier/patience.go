package llamatier

import "time"

// patience is how long a Tier waits for the engine. engine.Patience has the waits for the store.
type patience struct {
	look time.Duration // between two looks at a slot while an action on it is not answered
	end  time.Duration // for an action on a slot in which nothing runs
	part time.Duration // for reading a part of a stream, while an engine waits for it

	leave time.Duration // for an engine to leave a request whose client is gone
	stage time.Duration // for the first step of a request; the engine goes on from there

	saving  time.Duration // before a save, for the pages of another slot to be stored, which a disk may hang
	unknown time.Duration // for actions on slots before a request of which nothing is known

	busy time.Duration // until people are told that requests of others keep a slot from being saved

	answer time.Duration // for an answer to a question, which comes between two batches
}

var usualPatience = patience{
	look: time.Second, end: 10 * time.Minute, part: 10 * time.Second,
	leave: 5 * time.Second, stage: stageMax, saving: time.Second, unknown: 10 * time.Second,
	busy: 10 * time.Minute, answer: 5 * time.Minute,
}

// lookTimeout bounds the time of a look at a slot.
const lookTimeout = 10 * time.Second

// stageMax bounds the first step of a request: until it is over, a client gets no headers.
const stageMax = 5 * time.Minute
