// Package soak makes up what users do to a server: long, mixed and random, and the same
// for the same seed. It also says how two servers' answers are compared. It starts nothing
// and asks nobody; package e2e plays a history on real servers.
//
// A [History] is a list of rounds. The requests of a round are made at the same time, and
// something may happen to the server before or during it. What a request says depends on
// the conversation it belongs to, which depends on earlier answers: [Chats] keeps those.
//
//	history := soak.New(seed, config)
//	chats := soak.NewChats(history.System, text)
//	for _, round := range history.Rounds {
//		for _, request := range round.Requests {
//			messages := chats.Ask(request) // send these, compare the answers
//			chats.Answered(request, answer)
//		}
//	}
package soak
