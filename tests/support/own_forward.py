"""A forward in the style of policies that override it, with the two building blocks for memory."""


def own_forward(self, td, state=None, action=None):
    observations = td["env_obs"]
    B, TT = observations.shape[0], 1 if action is None else observations.shape[1]
    hidden = self.encode_observations(observations.flatten(0, td.batch_dims - 1))
    lstm_h, lstm_c, env_id = self._manage_lstm_state(td, B, TT, observations.device)
    hidden, (new_h, new_c) = self.lstm(hidden.view(B, TT, -1).transpose(0, 1), (lstm_h, lstm_c))
    self._store_lstm_state(new_h, new_c, env_id)
    logits, value = self.decode_actions(hidden.transpose(0, 1).reshape(B * TT, -1))
    if action is None:
        return self.forward_inference(td, logits, value)
    return self.forward_training(td, action, logits, value)
