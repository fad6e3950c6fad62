"""A training loop in the manner of CleanRL's LSTM script, with places to break it."""

import torch

SIZE, HIDDEN = 6, 8


class Loop:
    """Right."""

    def __call__(self, envs, agent):
        optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
        steps, rows = 8, envs.num_envs
        observation, done = torch.as_tensor(envs.reset()[0]), torch.zeros(rows)
        state = (torch.zeros(1, rows, HIDDEN), torch.zeros(1, rows, HIDDEN))
        for _ in range(4):
            state = self.before_rollout(state)
            first = tuple(part.clone() for part in state)
            observations, dones, actions, states = [], [], [], []
            for _ in range(steps):
                observations.append(observation)
                dones.append(done)
                with torch.no_grad():
                    given = self.acting_done(done)
                    action, _, _, _, state = agent.get_action_and_value(observation, state, given)
                actions.append(action)
                states.append(state)
                observation, _, terminated, truncated, _ = envs.step(action.numpy())
                observation, done = torch.as_tensor(observation), self.ended(terminated, truncated).float()
            dones = self.stored_dones(dones, done)
            observations = self.stored_observations(observations, observation)
            state = self.after_rollout(agent, observation, state, done)
            columns = [2, 0]
            start = self.start_state(first, states)
            fields = (torch.stack(field)[:, columns] for field in (observations, dones, actions))
            x, flags, taken = (self.flat(field) for field in fields)
            _, log_prob, _, value, _ = agent.get_action_and_value(
                x, tuple(part[:, columns] for part in start), self.learning_done(flags), taken
            )
            optimizer.zero_grad()
            (log_prob.mean() + value.mean()).backward()
            optimizer.step()

    def ended(self, terminated, truncated):
        return torch.as_tensor(terminated | truncated)

    def before_rollout(self, state):
        return state

    def after_rollout(self, agent, observation, state, done):
        return state

    def stored_dones(self, dones, last):
        return dones

    def stored_observations(self, observations, last):
        return observations

    def acting_done(self, done):
        return done

    def learning_done(self, done):
        return done

    def start_state(self, first, states):
        return first

    def flat(self, field):
        return field.reshape(-1, *field.shape[2:])


class ZeroStart(Loop):
    def start_state(self, first, states):
        return tuple(torch.zeros_like(part) for part in first)


class OneStepLate(Loop):
    """Two names for one state, which acting overwrites."""

    def start_state(self, first, states):
        return states[0]


class OneStepLateAtStarts(OneStepLate):
    """The same as one step late, in a loop that zeroes the state itself in place of a flag at the first step."""

    def learning_done(self, done):
        rows = done.shape[0] // 8
        done = done.clone()
        done[:rows] = 0
        return done


class StartsNotPassed(Loop):
    def learning_done(self, done):
        return torch.zeros_like(done)


class NeverCleared(Loop):
    def acting_done(self, done):
        return torch.zeros_like(done)


class TruncationForgotten(Loop):
    def ended(self, terminated, truncated):
        return torch.as_tensor(terminated)


class DonesOneStepEarly(Loop):
    """done is stored with the step that ended, not with the observation that begins."""

    def stored_dones(self, dones, last):
        return [*dones[1:], last]


class DonesOneStepLate(Loop):
    def stored_dones(self, dones, last):
        return [torch.zeros_like(last), *dones[:-1]]


class MasksForStarts(Loop):
    def learning_done(self, done):
        return 1 - done


class AllRowsZeroed(Loop):
    """Where one row starts an episode, the states of all are zeroed."""

    def acting_done(self, done):
        return done.any().float().expand_as(done)


class NextObservationStored(Loop):
    """The buffer of observations is filled after the step."""

    def stored_observations(self, observations, last):
        return [*observations[1:], last]


class ZeroedBeforeRollouts(Loop):
    def before_rollout(self, state):
        return tuple(torch.zeros_like(part) for part in state)


class StateOfTheBootstrapKept(Loop):
    """The value of the last observation is computed by a call whose state is kept."""

    def after_rollout(self, agent, observation, state, done):
        with torch.no_grad():
            return agent.get_action_and_value(observation, state, done)[-1]


class StateOfTheEnd(Loop):
    def start_state(self, first, states):
        return states[-1]


class RowsFirst(Loop):
    def flat(self, field):
        return field.transpose(0, 1).reshape(-1, *field.shape[2:])


def sequences(env, policy):
    """Right, with the plain call: policy(obs, state, starts)."""
    state, starts = policy.initial_state(env.num_envs), torch.ones(env.num_envs)
    observation = env.reset()[0]
    for _ in range(4):
        first, observations, flags = tuple(part.clone() for part in state), [], []
        for _ in range(8):
            observations.append(torch.as_tensor(observation))
            flags.append(starts)
            with torch.no_grad():
                logits, _, state = policy(observations[-1], state, starts)
            observation, _, terminated, truncated, _ = env.step(logits.argmax(-1).numpy())
            starts = torch.as_tensor(terminated | truncated).float()
        policy(torch.stack(observations), first, torch.stack(flags))


right, zero_start = Loop(), ZeroStart()
